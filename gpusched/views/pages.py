"""Make the pages of `status` and `explain` from rows of a queue. Reads no clock and no file, and prints nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpusched.common.errors import disk_full
from gpusched.common.text import clean
from gpusched.core.documents import job_title
from gpusched.core.jobs.outcome import describe
from gpusched.core.jobs.progress import StartTotals
from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED
from gpusched.core.jobs.reconcile import CAUSE_REMOVED
from gpusched.core.model import AttemptRow, ForeignUse, JobRow, JobState
from gpusched.views.changes import change_lines
from gpusched.views.failures import group_failures, hint
from gpusched.views.job_lines import attempt_times, job_line
from gpusched.views.report import DeviceLine, RunningLine, gpu_noun, shorten_commands, tally
from gpusched.views.tables import DIM, HEAD, STATES, TONES, Cell, Line, Row, bar, counted, grid, line
from gpusched.views.values import JobReport, JobWithLast, QueueReport, QueueSummary, Reasons, Scene, UsageSum
from gpusched.views.words import (
    clock,
    command_text,
    count,
    fit,
    job_text,
    line_place,
    line_text,
    mib,
    moment,
    priority,
    short_path,
    shorten,
    tag_text,
)

SHOWN_JOBS = 10  # of each group, without -v
WAITS_WIDTH = 80  # in a line of a queue


# ---- status ----------------------------------------------------------------------------------------


def queue_list(heads: Iterable[QueueSummary], now: float) -> list[Line]:
    rows: list[Row] = []
    for head in heads:
        c = head.counts
        failed = (str(c.failed), STATES["failed"] if c.failed else "")
        since = clock(now - head.started_at) if head.started_at else "-"
        numbers: list[Cell] = [str(c.running), str(c.queued), (str(c.held or ""), STATES["held"]), str(c.succeeded)]
        numbers += [failed, str(c.cancelled or ""), since]
        waits_for = fit(clean(head.waits_for), WAITS_WIDTH)
        rows.append([(clean(head.name), HEAD), _dispatcher_word(head), *numbers, waits_for])
    columns = ["RUNNING", "QUEUED", "HELD", "SUCCEEDED", "FAILED", "CANCELLED", "AGE"]
    return grid(["QUEUE", "DISPATCHER", *columns, "WAITS FOR"], rows, right=" ".join(columns))


def _dispatcher_word(head: QueueSummary) -> Cell:
    if head.pid is not None:
        return (f"pid {head.pid}" if head.pid else "yes", "green")
    return (f"none, {count(head.runs_on, 'job')} on its own", "yellow") if head.runs_on else "none"


def queue_page(report: QueueReport) -> list[Line]:
    """Return the page of a queue: its GPUs, running, waiting and failed jobs, or all jobs."""
    scene, head, lines = report.scene, report.summary, queue_head(report)
    lines += [line((group.name, HEAD), f"  {group.fraction:.0%}  {group.text}") for group in report.groups]
    lines += [line(f"merged  {clean(short_path(text, scene.cwd))}") for text in report.merged]
    lines += [line((f"        {clean(text)}", "yellow")) for text in report.warnings[:SHOWN_JOBS]]
    blocks = (
        device_table(report.devices),
        _running(report.running, scene.now),
        _waiting(report.waiting, report.reasons, head.counts.queued),
        _failed(scene, report.failed, head.counts.failed),
        job_table(report.jobs, scene.now),
    )
    return lines + [each for block in blocks if block for each in (line(), *block)]


def queue_head(report: QueueReport) -> list[Line]:
    """Return the first lines of a page about a queue: what it is, who dispatches it, and the numbers of its jobs."""
    scene, head = report.scene, report.summary
    source = clean(short_path(report.source, scene.cwd))
    lines = [line((head.name, HEAD), f"  {short_path(scene.queue, scene.cwd)}  {source}")]
    lines.append(line(_by_whom(scene, head, report)))
    if head.full_disk:
        what = disk_full(head.full_disk, "until it has room, no job starts and no end of a job is recorded")
        lines.append(line((clean(what), "bold red")))
    lines.append(counted(head.counts.parts()))
    return lines + [line((_start_text(totals, scene.now, head.pid is not None), DIM)) for totals in report.starts]


def _start_text(totals: StartTotals, now: float, is_dispatched: bool) -> str:
    """Return what the last start has done, or all of them: when, the jobs that ended, and the time on GPUs."""
    began, ended = moment(totals.began_at, now), moment(totals.ended_at, now)
    single = "this start" if is_dispatched else "last start"
    which = single if totals.starts == 1 else f"all {totals.starts} starts"
    when = f"since {began}" if is_dispatched else f"{began} to {ended}"
    spent = clock(totals.work_s) if totals.starts == 1 else f"dispatched for {clock(totals.work_s)}"
    states = [f"{number} {word}" for word, number in tally(totals.states).parts(ended_first=True) if number]
    hours = totals.gpu_s / 3600
    used = f"{count(totals.attempts, 'attempt')}, {hours:.{1 if hours >= 10 else 2}f} GPU hours"
    return f"{which} {when} ({spent}): {', '.join([*states, used])}"


def _by_whom(scene: Scene, head: QueueSummary, report: QueueReport) -> str:
    if head.is_paused:
        who = f"dispatched by pid {head.pid}" if head.pid else "no dispatcher"
        return f"paused: nothing new starts; {who}; to go on: gpusched resume -q {scene.option}"
    if head.pid is not None:
        who = f"dispatched by pid {head.pid}" if head.pid else "is being dispatched"
        if head.closed:
            return f"{who}, which starts nothing new: {clean(head.closed)}"
        gpus = f"{gpu_noun(device.item for device in report.devices)}s"
        if report.unreadable:
            return f"{who}, which cannot read the {gpus}: {report.unreadable}"
        if report.looked_at is None:
            return who
        return f"{who}, which read the {gpus} {clock(scene.now - report.looked_at)} ago"
    if head.runs_on:
        return f"no dispatcher; {count(head.runs_on, 'job')} still running; to supervise them: {scene.resume}"
    if head.counts.running > head.interactive or (head.counts.queued and (head.can_start or not head.counts.held)):
        return f"no dispatcher; to continue: {scene.resume}"
    if head.interactive:
        return "only interactive jobs run; no dispatcher is needed"
    held = [job for job in report.waiting if job.state is JobState.HELD]
    if held and all(job.cause == CAUSE_DEPENDENCY for job in held):
        return f"nothing is left but jobs that wait for failed ones: gpusched requeue JOB -q {scene.option}"
    if head.counts.held:
        return f"nothing is left but held jobs and what waits for them: gpusched release JOB -q {scene.option}"
    return "all jobs have ended; no dispatcher is needed" if head.counts.total else "no jobs"


def device_table(
    devices: Sequence[DeviceLine],
    *,
    full: bool = False,
    memory_bar: int = 0,
    names: bool = False,
    width: int = 0,
    trends: Mapping[str, str] | None = None,
) -> list[Line]:
    """Return the table of GPUs; with `full` also their names and all processes on them.

    With a bar of the memory of so many cells, there is one of the use too, and temperature and power. Columns are left
    out to fit into `width`. `trends` are the last minutes of each, by UUID.
    """
    rows: list[Row] = []
    for d in devices:
        why: list[Cell] = [text for text in (d.detail, d.claimed) if text]
        if full and d.processes:
            says_more = d.tone == "busy" and " in use by " in d.detail
            why = [*d.processes, *(why[1:] if says_more else why)]
        busy = bar([(d.utilisation or 0.0, "green")], 8 if memory_bar else 0)
        name = d.name if full or names else ""
        used = memory_text(d, memory_bar)
        trend = (trends or {}).get(d.item.device.uuid, "")
        heat = (d.heat, d.power) if memory_bar else ("", "")
        rows.append([d.label, name, used, d.memory, busy, d.use, trend, *heat, (d.word, TONES[d.tone]), why])
    head = ["GPU", "NAME", "", "MEMORY", "", "USE", "", "°C", "W", "STATE", "WHY"]
    return grid(head, rows, right="GPU MEMORY USE °C W", fit=(width, (1, 4, 8, 7, 10, 6, 5, 3, 9) if width else ()))


def memory_text(device: DeviceLine, width: int) -> Line:
    """Return a bar of the memory in use on a GPU. What the driver itself takes is no use of it."""
    share = (device.used_bytes or 0) / (device.item.view.total_bytes or 1)
    return bar([(share, TONES[device.tone])] if share > 0.005 else [], width)


def marked_command(job: RunningLine) -> Line:
    return line((f"[{job.mark}] " if job.mark else "", "yellow"), job.command)


def _running(running: Sequence[RunningLine], now: float) -> list[Line]:
    rows: list[Row] = []
    for job in shorten_commands(running):
        done = "" if job.fraction is None else f"{job.fraction:.0%}"
        texts: list[Cell] = [marked_command(job), *((text, DIM) for text in job.texts)]
        times = [moment(job.started_at, now), clock(job.elapsed_s), done]
        attempt = str(job.attempt) if job.attempt > 1 else ""
        rows.append([str(job.job_id), job.line, attempt, job.where, *times, job.prio, job.tags, texts])
    head = ["RUNNING", "LINE", "ATTEMPT", "GPU", "STARTED", "TIME", "DONE", "PRIO", "TAGS", "COMMAND"]
    return grid(head, rows, right="RUNNING LINE ATTEMPT TIME DONE PRIO")


def _waiting(waiting: Sequence[JobRow], reasons: Reasons, total: int) -> list[Line]:
    """Return the waiting jobs in the order of their start, with one heading for neighbours of the same reason."""
    texts = shorten([job_text(job) for job in waiting])
    named = zip(waiting, texts, strict=True)
    rows: list[Row] = [[str(job.id), line_text(job), priority(job), tag_text(job), text] for job, text in named]
    table = grid(["WAITING", "LINE", "PRIO", "TAGS", "COMMAND"], rows, right="WAITING LINE PRIO")
    lines = table[:1]
    before, notes = "", set[str]()
    for job, row in zip(waiting, table[1:], strict=True):
        kind, why = reasons.get(job.id, ("", ""))
        why = why.partition(": ")[0] if kind == "behind" else why
        short, _, note = why.partition(" (")
        why = short if kind == "devices" and note in notes else why
        notes.add(note)
        if why and why != before:
            lines.append(line((f"{_INDENT}{clean(why)}:", "yellow")))
        before = why
        lines.append(row)
    return lines + _more(total - len(waiting))


def _failed(scene: Scene, failed: Sequence[JobWithLast], total: int) -> list[Line]:
    groups = group_failures(failed)[:SHOWN_JOBS]
    texts = shorten([job_text(group.job) for group in groups])
    rows: list[Row] = [
        [str(job.id), line_text(job), *attempt_times(job, group.last, scene.now), group.how, tag_text(job), text]
        for group, job, text in zip(groups, (group.job for group in groups), texts, strict=True)
    ]
    head = ["FAILED", "LINE", "ATTEMPTS", "STARTED", "ENDED", "TIME", "HOW", "TAGS", "COMMAND"]
    table = grid(head, rows, right="FAILED LINE ATTEMPTS TIME")
    lines = table[:1]
    for row, group in zip(table[1:], groups, strict=True):
        last = group.last
        lines.append(row)
        if text := group.sentence if len(group.ids) > 1 else group.reason:
            lines.append(line(f"{'':>14}{text}"))
        if last is not None:
            lines.append(line((f"{'':>14}{scene.path(last.error_log or last.log)}", DIM)))
    return lines + _more(total - sum(len(group.ids) for group in groups)) if groups else []


_INDENT = " " * 9  # below the number of a job


def _more(number: int) -> list[Line]:
    return [line(f"{_INDENT}… and {number} more (-v lists them)")] if number > 0 else []


def job_table(jobs: Sequence[JobWithLast], now: float) -> list[Line]:
    """Return the table of these jobs, one line each."""
    lines = [job_line(job, last, now) for job, last in jobs]
    rows: list[Row] = [
        [
            *(str(job.job_id), job.line, (job.state, STATES[job.state]), job.where, job.attempts, job.started),
            *(job.ended, job.time, job.how, job.prio, job.tags, text),
        ]
        for job, text in zip(lines, shorten([job.text for job in lines]), strict=True)
    ]
    columns = ["JOB", "LINE", "STATE", "GPU", "ATTEMPTS", "STARTED", "ENDED", "TIME", "HOW", "PRIO", "TAGS", "COMMAND"]
    return grid(columns, rows, right="JOB LINE ATTEMPTS TIME PRIO")


def history_page(jobs: Sequence[JobWithLast], number: int, since: float, now: float, *, failed: bool) -> list[Line]:
    """Return the jobs that have ended since then, or have `failed`; `number` is how many there are."""
    if not jobs:
        return [line(f"no job has {'failed' if failed else 'ended'} since {moment(since, now)}")]
    earlier = [line((f"… and {number - len(jobs)} earlier ones (-v lists them)", DIM))] if number > len(jobs) else []
    return [*earlier, *job_table(jobs, now)]


def usage_table(by: str, sums: Mapping[str, UsageSum], together: UsageSum) -> list[Line]:
    """Return the table of what was used by each tag, device, day or queue, and by all together."""
    named = [(clean(key) or f"no {by}", each) for key, each in sums.items()]
    rows: list[Row] = [
        [
            (key, HEAD if each is together else ""),
            str(len(each.jobs)),
            str(each.attempts),
            (str(each.failed), STATES["failed"] if each.failed else ""),
            f"{each.job_s / 3600:.2f}",
            f"{each.gpu_s / 3600:.2f}",
            f"{each.idle_s / each.gpu_s:.0%}" if each.idle_s else "",
            f"{each.energy_j / 3.6e6:.2f}" if each.energy_j else "",
            "" if each.foreign_use.share is None else f"{each.foreign_use.share:.0%}",
        ]
        for key, each in [*named, ("all", together)]
    ]
    head = [by.upper(), "JOBS", "ATTEMPTS", "FAILED", "HOURS", "GPU-HOURS", "IDLE", "KWH", "OTHERS"]
    lines = grid(head, rows, right="JOBS ATTEMPTS FAILED HOURS GPU-HOURS IDLE KWH OTHERS")
    return [*lines, line(), line(f"others: {_others(together.foreign_use)}")] if together.foreign_use.shared else lines


def _others(use: ForeignUse) -> str:
    """Return the processes of others in words, and what they have used of the GPUs at most."""
    most = [] if use.peak_bytes is None else [f"{mib(use.peak_bytes)} MiB"]
    most += [] if use.peak_utilisation is None else [f"{use.peak_utilisation:.0%} GPU use"]
    samples = f"in {use.shared} of {count(use.samples, 'sample')}"
    return f"{clean(', '.join(use.who))} {samples}{', at most ' + ' and '.join(most) if most else ''}"


# ---- explain ---------------------------------------------------------------------------------------


def explanation_page(report: QueueReport) -> list[Line]:
    """Return the page that explains a queue: its GPUs, why its jobs wait, how those that failed have ended."""
    counts, option = report.summary.counts, report.scene.option
    groups = report.jobs_by_reason()
    waiting = [clean(text) for text in change_lines(groups)]
    if more := counts.queued - sum(map(len, groups.values())):
        waiting.append(f"{count(more, 'more job')} behind them")
    if counts.held:
        waiting.append(f"{count(counts.held, 'held job')}: gpusched release JOB -q {option}")
    failed: list[str] = []
    for group in group_failures(report.failed):
        failed.append(f"job {group.ids[0]}: {group.sentence}" if len(group.ids) == 1 else group.sentence)
        advice = hint(group.job, group.last) if group.last else ""
        failed += [f"  {clean(advice)}"] if advice else []
    lines = queue_head(report)
    if report.devices:
        lines += [line(), *device_table(report.devices)]
    for title, texts in (("waiting", waiting), ("failed", failed)):
        lines += [line(), line((title, HEAD)), *(line(f"  {text}") for text in texts)] if texts else []
    return [*lines, line(), line((f"of one job: gpusched explain JOB -q {option}", DIM))]


def job_page(report: JobReport) -> list[Line]:
    """Return the page of one job with its attempts."""
    scene, job, attempts = report.scene, report.job, report.attempts
    tags = f", tags {tag_text(job)}" if job.tags else ""
    prio = f", priority {job.prio}" if job.prio else ""
    state = (job.state.value, STATES[job.state.value])
    head = line((clean(job_title(job)), HEAD), f"{line_place(job)}{tags}{prio}: ", state)
    lines = [head, line(f"  {command_text(job.command)}")]
    lines.append(line((f"  in {clean(job.cwd.decode('utf-8', 'replace'))}", DIM)))
    lines += [line((f"  asks for {clean(report.needs)}", DIM))] if report.needs else []
    for attempt in attempts:
        lines += [line(), *_attempt(scene, job, attempt)]
    lines.append(line())
    lines += [line(f"  {clean(text)}") for text in [*report.current, *_what_next(scene, job, attempts)]]
    return lines


def _attempt(scene: Scene, job: JobRow, attempt: AttemptRow) -> list[Line]:
    now, began, ended = scene.now, attempt.started_at, attempt.ended_at
    where = ", ".join(f"GPU {d.index} ({clean(d.name)})" if d.name else f"GPU {d.index}" for d in attempt.devices)
    when = f"since {moment(began, now)}" if ended is None else f"{moment(began, now)} to {moment(ended, now)}"
    spent = clock((ended or now) - began)
    lines = [line((f"attempt {attempt.number}", HEAD), f"  {when} ({spent}) on {where or 'the CPU'}")]
    if attempt.outcome is not None:
        lines.append(line("  how   ", (clean(describe(attempt.outcome)), "" if attempt.outcome.ok else "red")))
        lines += [line(f"  hint  {clean(advice)}")] if (advice := hint(job, attempt)) else []
    lines += [line(f"  log   {scene.path(name)}") for name in (attempt.log, attempt.error_log) if name]
    used, others = _usage_text(job, attempt), attempt.usage.foreign_use
    lines += [line(f"  used  {used}")] if used else []
    if others.shared:
        lines.append(line(f"  with  {_others(others)}", (" (disturbed: alone=yes)" if others.disturbed else "", "red")))
    return lines


def _usage_text(job: JobRow, attempt: AttemptRow) -> str:
    usage, parts = attempt.usage, []
    if usage.peak_memory_bytes is not None:
        stated = f" ({mib(job.stated_mem_bytes)} MiB stated)" if job.stated_mem_bytes > 0 else ""
        parts.append(f"{mib(usage.peak_memory_bytes)} MiB of GPU memory at most{stated}")
    if usage.mean_utilisation is not None:
        parts.append(f"{usage.mean_utilisation:.0%} GPU use on average")
    if usage.foreign_use.share == 0:
        parts.append(f"no process of others in {count(usage.foreign_use.samples, 'sample')}")
    if attempt.max_rss_bytes is not None:
        parts.append(f"{mib(attempt.max_rss_bytes)} MiB of main memory at most")
    if usage.energy_j is not None:
        parts.append(f"{usage.energy_j / 3600:.1f} Wh")
    return ", ".join(parts)


def _what_next(scene: Scene, job: JobRow, attempts: Sequence[AttemptRow]) -> list[str]:
    again = f"to queue it again, with all its tries: gpusched requeue {job.id} -q {scene.option}"
    if job.origin == "exec":
        return []
    if job.state is JobState.FAILED:
        limit = f" (--retries {job.retries})" if job.tries > job.retries else ""
        return [f"it is not tried again by itself{limit}", again]
    if job.state is JobState.CANCELLED and job.cause == CAUSE_REMOVED:
        return ["its line was removed from the list; it is queued again if the line returns"]
    if job.state in (JobState.CANCELLED, JobState.HELD) and job.cause in (CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED):
        return ["it is released when one of the jobs that it waits for is queued again"]
    if job.state is JobState.CANCELLED:
        return [again]
    if job.state is JobState.HELD:
        return [f"to let it start again: gpusched release {job.id} -q {scene.option}"]
    if job.state is JobState.QUEUED and attempts and job.retries:
        return [f"tries so far: {job.tries} of {job.retries + 1}"]
    return []
