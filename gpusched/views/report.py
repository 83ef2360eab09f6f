"""Turn rows and readings into texts about devices and jobs for people, not yet laid out. Reads no clock and no file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpusched.common.text import clean
from gpusched.core.documents import parse_progress
from gpusched.core.jobs.progress import ItemGroup
from gpusched.core.model import Device, DeviceProcess, JobState, RunningView, Sample
from gpusched.core.plan.availability import RUNS_OURS, DeviceState
from gpusched.core.plan.board import BoardDevice
from gpusched.views.words import about, count, job_text, line_text, mib, priority, rate, shorten, tag_text

# ---- devices ---------------------------------------------------------------------------------------

_SAID = {"free", "lost", "not read yet", RUNS_OURS}  # reasons that the word for the state says
_SETTLING_WHY = "waiting for the memory of our last job: "


class DeviceLine(NamedTuple):
    """One GPU for people. `tone` is good, ours, wait, busy or bad; `detail` is the reason, unless `word` says it."""

    item: BoardDevice
    word: str
    detail: str
    tone: str
    claimed: str = ""

    @property
    def label(self) -> str:
        return device_label(self.item.device)

    @property
    def name(self) -> str:
        return clean(self.item.device.name) + (" (simulated)" if self.item.device.is_simulated else "")

    @property
    def sample(self) -> Sample | None:
        return self.item.view.availability.sample

    @property
    def used_bytes(self) -> int | None:
        return self.sample.used_bytes if self.sample else None

    @property
    def utilisation(self) -> float | None:
        return self.sample.utilisation if self.sample else None

    @property
    def memory(self) -> str:
        total = mib(self.item.view.total_bytes)
        return f"{mib(self.used_bytes).rjust(len(total))}/{total} MiB"

    @property
    def use(self) -> str:
        return "?" if self.utilisation is None else f"{round(self.utilisation * 100)}%"

    @property
    def heat(self) -> str:
        return "" if self.sample is None or self.sample.temperature_c is None else f"{self.sample.temperature_c:.0f}"

    @property
    def power(self) -> str:
        return "" if self.sample is None or self.sample.power_w is None else f"{self.sample.power_w:.0f}"

    @property
    def processes(self) -> tuple[str, ...]:
        is_ours = self.item.view.availability.state is DeviceState.SETTLING  # whose processes have just ended
        if self.sample is None or self.sample.error or (is_ours and self.sample.processes is None):
            return ()
        return process_texts(self.sample.processes)


_TONES = {
    DeviceState.FREE: "good",
    DeviceState.RUNNING: "ours",
    DeviceState.BUSY: "busy",
    **dict.fromkeys((DeviceState.CHECKING, DeviceState.SETTLING, DeviceState.UNKNOWN), "wait"),
}


def gpu_noun(items: Iterable[BoardDevice]) -> str:
    return "simulated GPU" if any(item.device.is_simulated for item in items) else "GPU"


def device_label(device: Device) -> str:
    return f"{device.index} {device.uuid[:12]}" if device.is_mig else str(device.index)


def device_line(item: BoardDevice, max_checks: int, *, of_queue: str = "") -> DeviceLine:
    """Return the line of a device of a dispatcher's board. `of_queue` names the queue if there may be several."""
    word, detail = _state_words(item, max_checks)
    if of_queue and item.job_ids:
        word += f" of {of_queue}"
    tone = "busy" if item.view.refused else _TONES.get(item.view.availability.state, "bad")
    return DeviceLine(item, word, clean(detail), tone)


def _state_words(item: BoardDevice, max_checks: int) -> tuple[str, str]:
    """Return a word for the state, and the reason if there is more to say."""
    availability = item.view.availability
    state, why = availability.state, availability.why
    is_over = bool(item.job_ids) and state is DeviceState.SETTLING  # the next job is on it already
    detail = "" if is_over or why in _SAID else why.removeprefix(_SETTLING_WHY)
    if item.job_ids:
        jobs = "jobs " if len(item.job_ids) > 1 else "job "
        return jobs + ", ".join(map(str, item.job_ids)), item.view.refused or detail
    if item.view.refused:
        word = "claimed" if item.view.refused.startswith("claimed ") else "set aside"
        return word, item.view.refused.removeprefix("claimed ")
    if state is DeviceState.CHECKING:
        return f"checking {availability.count}/{max_checks}", ""
    words = {DeviceState.RUNNING: "ours", DeviceState.UNKNOWN: "not read"}
    return words.get(state, state.value.replace("_", " ")), detail


def process_texts(processes: Sequence[DeviceProcess] | None) -> tuple[str, ...]:
    """Return the processes on a device: user, program, pid and memory; graphics processes are marked."""
    if processes is None:
        return ("unknown processes (of a container, or just ended)",)
    return tuple(
        f"{clean(p.user)} {clean(p.program)} (pid {p.pid}, {mib(p.used_bytes)} MiB"
        + (", graphics)" if p.kind == "G" else ")")
        for p in processes
    )


# ---- jobs ------------------------------------------------------------------------------------------


class RunningLine(NamedTuple):
    """One running job for people. `fraction` is from the job's own progress file."""

    job_id: int
    line: str
    where: str
    attempt: int
    started_at: float
    elapsed_s: float
    command: str  # or its name
    prio: str
    tags: str
    fraction: float | None
    texts: Sequence[str]  # what it says of its progress, and the last line of its log; once if they say the same
    mark: str  # stopping, or its leftover processes


def running_line(view: RunningView, now: float, tail: str = "") -> RunningLine:
    job, attempt = view.job, view.attempt
    report = parse_progress(attempt.progress)
    mark = "stopping" if view.stopping or job.cancel_requested_at is not None else ""
    if view.leftovers:
        leftovers = f"ended, but left {clean(leftover_text(view.leftovers))}"
        mark = f"{mark}, {leftovers}" if mark else leftovers
    return RunningLine(
        job_id=job.id,
        line=line_text(job),
        where=places(attempt.devices),
        attempt=attempt.number,
        started_at=attempt.started_at,
        elapsed_s=max(0.0, now - attempt.started_at),
        command=job_text(job),
        prio=priority(job),
        tags=tag_text(job),
        fraction=_fraction(report),
        texts=_progress_texts(report, tail),
        mark=mark,
    )


def shorten_commands(running: Sequence[RunningLine]) -> list[RunningLine]:
    """Shorten what the commands of one list share."""
    texts = shorten([job.command for job in running])
    return [job._replace(command=text) for job, text in zip(running, texts, strict=True)]


def leftover_text(names: str) -> str:
    """Turn `51 sleep, 52 tee`, as a shepherd writes it, into `sleep (pid 51), tee (pid 52)`."""
    return re.sub(r"(\d+) ([^,]+)", r"\2 (pid \1)", names)


def places(devices: Sequence[Any]) -> str:
    """Return the indices of an attempt's devices; CPU for a job without any."""
    return ",".join(str(device.index) for device in devices) or "CPU"


def _fraction(report: Mapping[str, Any]) -> float | None:
    done, total = report.get("done"), report.get("total")
    if done is None or not total or total <= 0:
        return None
    return float(min(1.0, max(0.0, done / total)))


def _progress_texts(report: Mapping[str, Any], tail: str) -> list[str]:
    parts = []
    if "done" in report:
        number = f"{report['done']:g}" + (f"/{report['total']:g}" if "total" in report else "")
        parts.append(" ".join(part for part in (number, report.get("unit", "")) if part))
    if report.get("message"):
        parts.append(report["message"])
    if not parts and report.get("ready"):
        parts.append("ready")
    if _says(" ".join(parts), tail):
        tail = ""
    elif parts and parts[-1] == report.get("message") and _says(tail, parts[-1]):
        parts.pop()
    return [text for text in (clean(", ".join(parts)), tail) if text]


def _says(text: str, part: str) -> bool:
    """Return True if the text contains the words of the part; numbers may differ: one of both is a moment older."""
    letters, wanted = ("".join(filter(str.isalpha, each)).casefold() for each in (text, part))
    return wanted in letters if wanted else part in text


class GroupLine(NamedTuple):
    """Jobs with items of the same tags, for people: their progress, and the words for it."""

    name: str
    fraction: float
    text: str


def group_line(group: ItemGroup, per_s: float, slowest_s: float | None = 0.0) -> GroupLine:
    """Return the line of a group. `per_s`: its present rate, in items per second; 0 if unknown.

    `slowest_s`: the time that its slowest running job needs; None if nobody knows.
    """
    parts = [f"{int(group.done)}/{count(group.items, 'item')}"]
    if group.done < group.items and per_s > 0:
        parts.append(rate(per_s))
        if slowest_s is not None:
            parts.append(f"{about(max((group.items - group.done) / per_s, slowest_s))} left")
    parts.append(f"{group.ended} of {count(group.jobs, 'job')} done")
    return GroupLine(clean(group.name), group.fraction, "  ".join(parts))


class JobCounts(NamedTuple):
    """The number of jobs in each state."""

    queued: int
    held: int
    running: int
    succeeded: int
    failed: int
    cancelled: int

    @property
    def total(self) -> int:
        return self.queued + self.held + self.running + self.ended

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.cancelled

    def parts(self, *, ended_first: bool = False) -> list[tuple[str, int]]:
        """Return words and numbers; held and cancelled only if there are any."""
        going = [("running", self.running), ("queued", self.queued), ("held", self.held)]
        ended = [("succeeded", self.succeeded), ("failed", self.failed), ("cancelled", self.cancelled)]
        rows = ended + going if ended_first else going + ended
        return [(word, n) for word, n in rows if n or word in ("running", "queued", "succeeded", "failed")]


def tally(counts: Mapping[JobState, int]) -> JobCounts:
    return JobCounts(**{state.value: counts.get(state, 0) for state in JobState})
