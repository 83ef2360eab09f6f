"""Rows and readings -> what people are shown of devices and jobs, not yet laid out. Reads no clock and no file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusched.common.text import clean
from gpusched.core.documents import parse_progress
from gpusched.core.jobs.progress import ItemGroup
from gpusched.core.model import Device, DeviceProcess, JobState, RunningView
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.board import BoardDevice
from gpusched.views.words import about, command_text, count, mib, rate

# ---- devices ---------------------------------------------------------------------------------------

_RUNNING_WHY = "runs a job of this queue"
_SETTLING_WHY = "waiting for the memory of our last job: "


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """One GPU for people. `tone` is good, ours, wait, busy or bad; `detail` says why, if the word does not."""

    uuid: str
    label: str
    name: str
    used_bytes: int | None
    total_bytes: int | None
    foreign_bytes: int | None
    utilisation: float | None
    word: str
    detail: str
    tone: str
    processes: tuple[str, ...]
    claimed: str = ""

    @property
    def memory(self) -> str:
        total = mib(self.total_bytes)
        return f"{mib(self.used_bytes).rjust(len(total))}/{total} MiB"

    @property
    def use(self) -> str:
        return "?" if self.utilisation is None else f"{round(self.utilisation * 100)}%"


_TONES = {
    DeviceState.FREE: "good",
    DeviceState.RUNNING: "ours",
    DeviceState.CHECKING: "wait",
    DeviceState.SETTLING: "wait",
    DeviceState.UNKNOWN: "wait",
    DeviceState.BUSY: "busy",
}


def device_label(device: Device) -> str:
    return f"{device.index} {device.uuid[:12]}" if device.is_mig else str(device.index)


def device_line(item: BoardDevice, max_checks: int, *, of_queue: str = "") -> DeviceLine:
    """A device of a dispatcher's board. `of_queue` names the queue where there may be several."""
    known, sample = item.view.availability, item.view.availability.sample
    word, detail = _state_words(item, max_checks)
    if of_queue and item.job_ids:
        word += f" of {of_queue}"
    return DeviceLine(
        uuid=item.device.uuid,
        label=device_label(item.device),
        name=clean(item.device.name),
        used_bytes=sample.used_bytes if sample else None,
        total_bytes=item.view.total_bytes,
        foreign_bytes=known.foreign_bytes,
        utilisation=sample.utilisation if sample else None,
        word=word,
        detail=clean(detail),
        tone="busy" if item.view.refused else _TONES.get(known.state, "bad"),
        processes=process_texts(sample.processes if sample and not sample.error else ()),
    )


def _state_words(item: BoardDevice, max_checks: int) -> tuple[str, str]:
    known = item.view.availability
    state, why = known.state, known.why
    if item.job_ids:
        jobs = "jobs " if len(item.job_ids) > 1 else "job "
        return jobs + ", ".join(map(str, item.job_ids)), "" if why in (_RUNNING_WHY, "free") else why
    if item.view.refused:
        return "claimed", item.view.refused.removeprefix("claimed ")
    if state is DeviceState.CHECKING:
        return f"checking {known.count}/{max_checks}", ""
    if state is DeviceState.RUNNING:
        return "ours", ""
    word = state.value.replace("_", " ")
    if state is DeviceState.UNKNOWN:
        word = "not read"
    plain = {"free", "lost", "not read yet"}
    return word, "" if why in plain else why.removeprefix(_SETTLING_WHY)


def process_texts(processes: Sequence[DeviceProcess] | None) -> tuple[str, ...]:
    """Who is on a device: user, program, pid and memory; graphics processes are marked."""
    if processes is None:
        return ("processes cannot be told apart",)
    return tuple(
        f"{clean(p.user)} {clean(p.program)} (pid {p.pid}, {mib(p.used_bytes)} MiB"
        + (", graphics)" if p.kind == "G" else ")")
        for p in processes
    )


# ---- jobs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunningLine:
    """One running job for people. `fraction` and `progress` come from the job's own progress file."""

    job_id: int
    line: int
    attempt: int
    where: str
    elapsed_s: float
    command: str
    logs: tuple[str, ...]
    fraction: float | None = None
    progress: str = ""
    mark: str = ""  # stopping, or what it has left behind


def running_line(view: RunningView, now: float) -> RunningLine:
    job, attempt = view.job, view.attempt
    told = parse_progress(attempt.progress)
    mark = "stopping" if view.stopping or job.cancel_requested_at is not None else ""
    if view.leftovers:
        left = f"ended, but left {clean(leftover_text(view.leftovers))}"
        mark = f"{mark}, {left}" if mark else left
    return RunningLine(
        job_id=job.id,
        line=job.line,
        attempt=attempt.number,
        where=places(attempt.devices),
        elapsed_s=max(0.0, now - attempt.started_at),
        command=command_text(job.command),
        logs=tuple(name for name in (attempt.log, attempt.error_log) if name),
        fraction=_fraction(told),
        progress=_progress_text(told),
        mark=mark,
    )


def leftover_text(names: str) -> str:
    """`51 sleep, 52 tee` as a shepherd writes it -> `sleep (pid 51), tee (pid 52)`."""
    return re.sub(r"(\d+) ([^,]+)", r"\2 (pid \1)", names)


def places(devices: Sequence[Any]) -> str:
    """The indices of an attempt's devices; CPU for a job without any."""
    return ",".join(str(device.index) for device in devices) or "CPU"


def _fraction(told: Mapping[str, Any]) -> float | None:
    done, total = told.get("done"), told.get("total")
    if done is None or not total or total <= 0:
        return None
    return float(min(1.0, max(0.0, done / total)))


def _progress_text(told: Mapping[str, Any]) -> str:
    parts = []
    if "done" in told:
        number = f"{told['done']:g}" + (f"/{told['total']:g}" if "total" in told else "")
        parts.append(" ".join(part for part in (number, told.get("unit", "")) if part))
    if told.get("message"):
        parts.append(told["message"])
    if not parts and told.get("ready"):
        parts.append("ready")
    return clean(", ".join(parts))


@dataclass(frozen=True, slots=True)
class GroupLine:
    """Jobs with items of the same tags, for people: how far they are, and the words that say so."""

    name: str
    fraction: float
    text: str


def group_line(group: ItemGroup, per_s: float) -> GroupLine:
    """`per_s`: items that it does in a second now; 0: nobody can say."""
    parts = [f"{int(group.done)}/{count(group.items, 'item')}"]
    if group.done < group.items and per_s > 0:
        parts += [rate(per_s), f"{about((group.items - group.done) / per_s)} left"]
    parts.append(f"{group.ended} of {count(group.jobs, 'job')} done")
    return GroupLine(clean(group.name), group.fraction, "  ".join(parts))


@dataclass(frozen=True, slots=True)
class JobCounts:
    """How many jobs are in each state, without those whose line was removed."""

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
        """Word and number; held and cancelled only where there are any."""
        going = [("running", self.running), ("queued", self.queued), ("held", self.held)]
        ended = [("succeeded", self.succeeded), ("failed", self.failed), ("cancelled", self.cancelled)]
        rows = ended + going if ended_first else going + ended
        return [(word, n) for word, n in rows if n or word in ("running", "queued", "succeeded", "failed")]


def tally(counts: Mapping[JobState, int], removed: int) -> JobCounts:
    of = counts.get
    return JobCounts(
        of(JobState.QUEUED, 0),
        of(JobState.HELD, 0),
        of(JobState.RUNNING, 0),
        of(JobState.SUCCEEDED, 0),
        of(JobState.FAILED, 0),
        of(JobState.CANCELLED, 0) - removed,
    )
