"""The shapes of a story's charts, in units of an SVG that is WIDTH wide: no more of them than can be seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from gpusched.common.text import clean
from gpusched.core.jobs.outcome import describe
from gpusched.core.model import AttemptRow, JobRow, JobState, OutcomeKind
from gpusched.core.samples import GpuStretch, Stretch
from gpusched.views.story.values import CurvePoint, QueueStory
from gpusched.views.story.words import gpu_label, idle_text
from gpusched.views.words import count, job_text, moment, span

LEFT, WIDTH = 90.0, 1200.0
LANE, CURVES = 16.0, 44.0  # heights of a lane with jobs, and of the curves below
LABELLED = 34.0  # a bar so wide has room for its job
NARROW = 1.5  # bars that are no wider together are one
TICKS = 8
_LOST = (OutcomeKind.INTERRUPTED, OutcomeKind.LOST, OutcomeKind.NOT_STARTED)
_KINDS = {OutcomeKind.CANCELLED: "cancelled", **dict.fromkeys(_LOST, "lost")}
_RANKS = ("failed", "retried", "lost", "cancelled", "running", "succeeded")  # of bars too narrow to be two


class TimeScale(NamedTuple):
    """From moments to places."""

    began_at: float
    ended_at: float

    def x(self, at: float) -> float:
        length = max(1.0, self.ended_at - self.began_at)
        return LEFT + (WIDTH - LEFT) * min(1.0, max(0.0, (at - self.began_at) / length))

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield places with their times of day."""
        for n in range(TICKS):
            at = self.began_at + (self.ended_at - self.began_at) * n / TICKS
            yield self.x(at), moment(at, self.ended_at)


@dataclass(slots=True)
class Bar:
    """A part of a track. `kind` is how a job ended, or elsewhere, others or idle."""

    x: float
    end: float
    kind: str
    title: str
    label: str = ""
    lane: int = 0
    number: int = 1  # of jobs that are drawn as one

    @property
    def width(self) -> float:
        return max(0.8, self.end - self.x)


@dataclass(slots=True)
class Track:
    """One GPU: its jobs in lanes, the background behind them, and its curves."""

    label: str
    uuid: str
    name: str = ""
    bars: list[Bar] = field(default_factory=list)
    background: list[Bar] = field(default_factory=list)
    memory: str = ""  # points of a line
    use: str = ""
    y: float = 0.0

    @property
    def lanes(self) -> int:
        return 1 + max((bar.lane for bar in self.bars), default=0)

    @property
    def jobs_height(self) -> float:
        return self.lanes * LANE

    @property
    def height(self) -> float:
        return self.jobs_height + (CURVES if self.memory or self.use else 0.0) + 12


def tracks(story: QueueStory, scale: TimeScale) -> list[Track]:
    """Return a track for each GPU in the order of their indices, and one for the CPU if jobs ran there."""
    by_uuid: dict[str, tuple[int, Track]] = {}
    for stretch in story.stretches:
        for uuid, gpu in stretch.gpus.items():
            by_uuid[uuid] = gpu.index, Track(gpu_label(uuid, gpu.index), uuid)
    bars: dict[str, list[Bar]] = {}
    for job, attempts in story.jobs:
        for attempt in attempts:
            bar = _bar(job, attempt, story, scale)
            for device in attempt.devices:
                label = gpu_label(device.uuid, device.index)
                _, track = by_uuid.setdefault(device.uuid, (device.index, Track(label, device.uuid)))
                track.name = clean(device.name)
                bars.setdefault(device.uuid, []).append(bar)
            if not attempt.devices:
                by_uuid.setdefault("", (1 << 20, Track("CPU", "")))
                bars.setdefault("", []).append(bar)
    found = [track for _, track in sorted(by_uuid.values(), key=lambda item: (item[0], item[1].uuid))]
    y = 0.0
    for track in found:
        track.bars = _in_lanes(bars.get(track.uuid, ()))
        own = [(each, each.gpus[track.uuid]) for each in story.stretches if track.uuid in each.gpus]
        track.background = _background(own, scale)
        track.memory = _points(own, scale, lambda gpu: _share(gpu.used_mib, gpu.total_mib))
        track.use = _points(own, scale, lambda gpu: gpu.use)
        track.y, y = y, y + track.height
    return found


def _bar(job: JobRow, attempt: AttemptRow, story: QueueStory, scale: TimeScale) -> Bar:
    ended_at = story.ended_at if attempt.ended_at is None else attempt.ended_at
    outcome = attempt.outcome
    kind, how = "running", "runs"
    if outcome is not None:
        kind, how = _KINDS.get(outcome.kind, "succeeded" if outcome.ok else "failed"), clean(describe(outcome))
        if kind == "failed" and attempt.number < job.attempts:
            kind = "retried"
    number = f"{job.id}.{attempt.number}" if job.attempts > 1 else str(job.id)
    when = f"{moment(attempt.started_at, story.ended_at)}, {span(ended_at - attempt.started_at)}"
    title = f"job {number}: {job_text(job)[:200]}\n{how}; {when}"
    return Bar(scale.x(attempt.started_at), scale.x(ended_at), kind, title, number)


def _in_lanes(bars: Iterable[Bar]) -> list[Bar]:
    """Return copies of the bars, in lanes where they overlap; neighbours too narrow to be seen apart become one."""
    last: list[Bar] = []  # of each lane
    drawn: list[Bar] = []
    for bar in sorted(bars, key=lambda each: (each.x, each.end)):
        lane = next((n for n, before in enumerate(last) if before.end <= bar.x), len(last))
        before = last[lane] if lane < len(last) else None
        if before is not None and bar.end - before.x < NARROW:
            before.end, before.number, before.label = bar.end, before.number + 1, ""
            before.kind = min(before.kind, bar.kind, key=_RANKS.index)
            before.title = f"{count(before.number, 'attempt')}, the last one {bar.title}"
        else:
            drawn.append(replace(bar, lane=lane))
            last[lane : lane + 1] = drawn[-1:]
    return drawn


def _background(own: Sequence[tuple[Stretch, GpuStretch]], scale: TimeScale) -> list[Bar]:
    """Return what was on a GPU beside our jobs: others, or nothing, with the reason."""
    bars: list[Bar] = []
    for stretch, gpu in own:
        kind, why = _mainly(gpu)
        if not kind:
            continue
        x, end = scale.x(stretch.began_at), scale.x(stretch.ended_at)
        before = bars[-1] if bars else None
        if before is not None and (before.kind, before.label) == (kind, why) and x - before.end < 1.0:
            before.end = end
        else:
            bars.append(Bar(x, end, kind, "", why))
    for bar in bars:
        bar.title = bar.label
    return bars


def _mainly(gpu: GpuStretch) -> tuple[str, str]:
    """Return what took most of a stretch of a GPU, and its reason; nothing where that was a job of ours."""
    who = clean(", ".join(gpu.who))
    if gpu.elsewhere_s > max(gpu.others_s, gpu.ours_s):
        return "elsewhere", f"used by {who}"
    if gpu.who and (gpu.others_s or gpu.ours_s):
        memory = f" ({gpu.others_mib / 1024:.0f} GiB)" if gpu.others_mib else ""
        return "others", f"used by {who}{memory}" + (" beside our jobs" if gpu.ours_s > gpu.others_s else "")
    if gpu.idle and sum(gpu.idle.values()) > gpu.ours_s:
        return "idle", idle_text(max(gpu.idle, key=gpu.idle.__getitem__))
    return "", ""


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _points(
    own: Sequence[tuple[Stretch, GpuStretch]], scale: TimeScale, value: Callable[[GpuStretch], float | None]
) -> str:
    """Return a curve of values from 0 to 1 as the points of a line: one for each place, the largest value there."""
    by_place: dict[int, float] = {}
    for stretch, gpu in own:
        if (share := value(gpu)) is not None:
            place = round(scale.x((stretch.began_at + stretch.ended_at) / 2))
            by_place[place] = max(share, by_place.get(place, 0.0))
    return " ".join(f"{x},{(CURVES - 4) * (1 - min(1.0, share)):.1f}" for x, share in by_place.items())


def queue_areas(stretches: Iterable[Stretch], scale: TimeScale, height: float) -> tuple[float, Mapping[str, str]]:
    """Return the most jobs at once, and by state the points of its area, one area upon the other."""
    states = [state.value for state in (JobState.RUNNING, JobState.QUEUED, JobState.HELD)]
    by_place: dict[int, list[float]] = {}
    for stretch in stretches:
        place = round(scale.x((stretch.began_at + stretch.ended_at) / 2))
        by_place[place] = [stretch.states.get(state, 0.0) for state in states]
    most = max((sum(numbers) for numbers in by_place.values()), default=0.0)
    areas, floor = {}, dict.fromkeys(by_place, 0.0)
    for n, state in enumerate(states):
        top = {x: floor[x] + numbers[n] for x, numbers in by_place.items()}
        edge = [*top.items(), *reversed(floor.items())]
        areas[state] = " ".join(f"{x},{height * (1 - y / (most or 1.0)):.1f}" for x, y in edge)
        floor = top
    return most, areas


def peaks(
    points: Iterable[tuple[float, float | None]], began_at: float, ended_at: float, cells: int, gap_s: float
) -> list[float | None]:
    """Return the largest value in each of these cells of time; None where none is known.

    A value holds until the next one, but for `gap_s` at most.
    """
    cell_s = max(ended_at - began_at, 1e-9) / cells
    most: list[float | None] = [None] * cells
    for at, value in points:
        first, end = int((at - began_at) // cell_s), math.ceil((at + gap_s - began_at) / cell_s)
        if value is not None and first <= cells and end > 0:
            first = min(max(first, 0), cells - 1)
            most[first] = max(value, most[first] or 0.0)
            most[first + 1 : end] = [value] * len(most[first + 1 : end])
    return most


def peak_path(values: Sequence[float | None], height: float) -> str:
    """Return a curve of values from 0 to 1, one unit each, as the path of an SVG, with gaps where none is known."""
    steps, is_known = [], False
    for x, value in enumerate(values):
        if value is not None:
            steps.append(f"{'L' if is_known else 'M'}{x} {height * (1 - min(1.0, max(0.0, value))):.1f}h1")
        is_known = value is not None
    return "".join(steps)


def job_paths(points: Iterable[CurvePoint], cells: int, height: float) -> list[tuple[str, float, str, str]]:
    """Return for each GPU of a job its name, the most MiB of the job there, and the curves of memory and use."""
    by_gpu: dict[tuple[int, str], list[CurvePoint]] = {}
    for point in points:
        by_gpu.setdefault((point.index, point.uuid), []).append(point)
    paths = []
    for (index, uuid), own in sorted(by_gpu.items()):
        began, ended, most = own[0].at, own[-1].at, max(point.mib for point in own)
        gap_s = max((after.at - before.at for before, after in pairwise(own)), default=0.0)
        memory, use = (
            peak_path(peaks(values, began, ended, cells, gap_s), height)
            for values in ([(p.at, p.mib / (most or 1.0)) for p in own], [(p.at, p.use) for p in own])
        )
        paths.append((gpu_label(uuid, index), most, memory, use))
    return paths
