"""The report of a queue: its story as one HTML page that loads nothing. Returns text; writes no file.

Jinja escapes all text; what the script reads stands as JSON in a block that it cannot leave. The policy of the page
allows this one script and this one style, by their hashes, and nothing else.
"""

from __future__ import annotations

import json
from typing import Any

from gpusched.common.text import clean
from gpusched.core.jobs.failure import without_repetition
from gpusched.core.jobs.outcome import describe
from gpusched.core.model import MIB, AttemptRow, JobRow
from gpusched.views.pages import queue_head
from gpusched.views.report import places
from gpusched.views.story import charts
from gpusched.views.story.values import QueueStory, gpu_times, idle_costs, job_curves, waited_s, waits_by_kind
from gpusched.views.story.words import gpu_label, idle_text, wait_text
from gpusched.views.templates import content_hash, environment, read_files
from gpusched.views.words import command_text, count

FILES = read_files(str(__package__), "report.css", "report.js", "report.html", "timeline.html")
_ENVIRONMENT = environment(FILES)
QUEUE_HEIGHT = 90.0


def render(story: QueueStory) -> str:
    """Return the page."""
    times = gpu_times(story.stretches)
    css, js = FILES["report.css"], FILES["report.js"]
    return _ENVIRONMENT.get_template("report.html").render(
        css=css,
        js=js,
        hashes={"css": content_hash(css), "js": content_hash(js)},
        data=_data(story),
        story=story,
        title=clean(story.report.summary.name),
        head=[line.plain for line in queue_head(story.report)],
        notes=_notes(story),
        **_timeline_values(story),
        waits=[(wait_text(kind), seconds) for kind, seconds in waits_by_kind(story).items()],
        times=times,
        idle_text=idle_text,
        gpu_label=gpu_label,
        hours=lambda seconds: f"{seconds / 3600:.{2 if seconds >= 360 else 4}f}",
        share=lambda part, whole: f"{part / whole:.0%}" if whole else "",
    )


def render_timeline(story: QueueStory) -> str:
    """Return the part of the page that shows which job was on which GPU, as an element with the id timeline."""
    return _ENVIRONMENT.get_template("timeline.html").render(_timeline_values(story))


def _timeline_values(story: QueueStory) -> dict[str, Any]:
    scale = charts.TimeScale(story.began_at, story.ended_at)
    most, areas = charts.queue_areas(story.stretches, scale, QUEUE_HEIGHT)
    return {
        "tracks": charts.tracks(story, scale),
        "ticks": list(scale.ticks()),
        "charts": charts,
        "queue": {"most": most, "areas": areas, "height": QUEUE_HEIGHT},
    }


def _notes(story: QueueStory) -> list[str]:
    """Return what waiting has cost, and what packing has saved."""
    times = gpu_times(story.stretches)
    notes = [
        f"{seconds / 3600:.1f} GPU hours idle while jobs waited for {wait_text(kind)}"
        for kind, seconds in idle_costs(times.values()).items()
        if seconds >= 180
    ]
    held_s = sum(time.held_s for time in times.values())
    if held_s >= 180:
        notes.append(f"{held_s / 3600:.1f} GPU hours held by jobs that did nothing on their GPUs")
    alone_s = story.report.starts[-1].gpu_s if story.report.starts else 0.0
    saved_s = story.together.gpu_s - alone_s
    if saved_s >= max(180.0, 0.01 * alone_s):
        used = f"{story.together.gpu_s / 3600:.1f} GPU hours of jobs in {alone_s / 3600:.1f} hours of GPUs"
        notes.append(f"{saved_s / 3600:.1f} GPU hours saved by jobs that shared GPUs ({used})")
    hidden = story.report.summary.counts.total - len(story.jobs)
    if hidden > 0:
        notes.append(f"{count(hidden, 'older job')} not in the table and the timeline")
    return notes


# ---- for the script --------------------------------------------------------------------------------


def _data(story: QueueStory) -> str:
    """Return the rows of the table of jobs, and the curves of jobs, as JSON that cannot end its block."""
    numbers: dict[str, int] = {}  # of the GPUs, by their labels
    curves = {
        job: [
            [
                round(point.at - story.began_at),
                numbers.setdefault(gpu_label(point.uuid, point.index), len(numbers)),
                round(point.mib),
                round(100 * (point.use or 0.0)),
            ]
            for point in points
        ]
        for job, points in job_curves(story.stretches).items()
    }
    data = {
        "gpus": list(numbers),
        "jobs": [_job(job, list(attempts), story) for job, attempts in story.jobs],
        "curves": {job: points for job, points in curves.items() if len(points) > 1},
    }
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _job(job: JobRow, attempts: list[AttemptRow], story: QueueStory) -> list[Any]:
    """Return one job as the script expects it: the cells of its row, then its attempts."""
    last = attempts[-1] if attempts else None
    usage = last.usage if last else None
    peak, idle = (usage.peak_memory_bytes, usage.idle_share) if usage else (None, None)
    energy = sum(each.usage.energy_j or 0.0 for each in attempts)
    return [
        job.id,
        job.state.value,
        clean(job.name),
        command_text(job.command),
        clean(",".join(job.tags)),
        places(last.devices) if last else "",
        len(attempts),
        round(waited_s(job, attempts, story.ended_at), 1),
        last and round(last.started_at, 1),
        round(sum((each.ended_at or story.ended_at) - each.started_at for each in attempts), 1),
        peak if peak is None else round(peak / MIB),
        usage and usage.mean_utilisation,
        idle,
        round(energy) or None,
        _how(last) if last else clean(job.cause),
        [
            [each.number, each.started_at, each.ended_at, places(each.devices), _how(each), each.log]
            for each in attempts
        ],
    ]


def _how(attempt: AttemptRow) -> str:
    return clean(describe(without_repetition(attempt.outcome))) if attempt.outcome else ""
