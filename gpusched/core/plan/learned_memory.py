"""Learn from siblings how much memory a job with `mem=auto` needs, and decide what it counts with. Values only.

Siblings are jobs with `mem=auto` and the same first tag; what they use is kept for each model of GPU. The first one has
its GPU alone until its memory has settled. Then others join, one at a time: each when those before it have settled.
Once a sibling was seen from its start to its end, they join like jobs that state their memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from gpusched.common.errors import stored_value
from gpusched.core.jobs.job import BUDGET_STEP_BYTES, round_budget
from gpusched.core.jobs.lifecycle import LOSS_LIMIT
from gpusched.core.model import MIB, JobRow, Usage

KEY = "learned_memory"  # of what a queue knows, among its facts
_LEAST = "least"  # the source of a peak that nobody has seen
_SOURCES = {
    "process": "by process",
    "report": "by their own report",
    "device": "by the change of the GPU's memory",
    _LEAST: "ready without any: the least that counts",
}
_STEADY = 1.02  # memory that grows by less than this has settled


@dataclass(frozen=True, slots=True)
class Learned:
    """The memory that the siblings of a tag have shown on one model of GPU."""

    tag: str
    gpu_model: str
    peak_bytes: int = 0  # the largest on one device; 0: not known
    source: str = ""  # of the peak: see _SOURCES
    is_whole: bool = False  # of a job that was seen from its start to its end
    jobs_max: int = 0  # that may share a GPU, after an out-of-memory; 0: no limit of its own


@dataclass(frozen=True, slots=True)
class Share:
    """The share of a device that a job counts with."""

    budget_bytes: int  # 0: it has the device alone
    jobs_max: int = 0  # on the device, itself included; 0: no limit of its own
    is_known: bool = True  # False: another sibling joins only when this one has settled

    def most(self, jobs_per_gpu: int) -> int:
        """Return how many jobs the device may have, by this limit too."""
        return min(jobs_per_gpu, self.jobs_max or jobs_per_gpu)

    def running_bytes(self, *, is_settled: bool) -> int:
        """Return the budget of such a job that runs; 0 while it has its device alone."""
        return self.budget_bytes if self.is_known or is_settled else 0


@dataclass(frozen=True, slots=True)
class Trace:
    """The memory of a running job: the level from which on it has not grown, and for how many polls."""

    level_bytes: int = 0
    polls: int = 0


def follow(trace: Trace, peak_bytes: int) -> Trace:
    """Return the trace after one more poll; `peak_bytes` is the largest use of one device so far."""
    if peak_bytes > trace.level_bytes * _STEADY:
        return Trace(peak_bytes)
    return replace(trace, polls=trace.polls + 1)


def is_settled(trace: Trace, polls: int, *, ready: bool | None) -> bool:
    """Return True if the job has shown its memory: by its own word (`ready`), else after so many polls on one level."""
    return trace.level_bytes > 0 and (trace.polls >= polls if ready is None else ready)


def peak_of(usage: Usage, *, ready: bool | None) -> tuple[int, str]:
    """Return the peak of a job on one device, and its source; 0 while it is not known.

    A job that says it is ready and is known to use no GPU memory counts with a little, so that others may join it.
    One that says nothing may not have begun.
    """
    if ready and usage.peak_device_bytes == 0 and usage.memory_by != "device":
        return BUDGET_STEP_BYTES, _LEAST
    return usage.peak_device_bytes or 0, usage.memory_by


def find(learned: Iterable[Learned], tag: str, gpu_model: str) -> Learned:
    """Return what is known of a tag on a model of GPU."""
    same = (each for each in learned if (each.tag, each.gpu_model) == (tag, gpu_model))
    return next(same, Learned(tag, gpu_model))


def keep(learned: Iterable[Learned], new: Learned) -> tuple[Learned, ...]:
    """Return all that is known, with this record in the place of the older one."""
    others = [each for each in learned if (each.tag, each.gpu_model) != (new.tag, new.gpu_model)]
    return tuple(sorted((*others, new), key=lambda each: (each.tag, each.gpu_model)))


def note_peak(known: Learned, peak_bytes: int, source: str, *, is_whole: bool = False) -> Learned:
    """Return what is known after the peak of one more job; `is_whole`: it was seen to its end."""
    if peak_bytes > known.peak_bytes:
        known = replace(known, peak_bytes=peak_bytes, source=source)
    return replace(known, is_whole=known.is_whole or (is_whole and peak_bytes > 0))


def note_out_of_memory(known: Learned, jobs: int) -> Learned:
    """Return what is known after one of so many jobs on a GPU ran out of memory: one less may share such a GPU."""
    most = min(jobs, known.jobs_max or jobs)
    return replace(known, jobs_max=max(1, min(most, jobs - 1)))


def share(
    job: JobRow, gpu_model: str, learned: Iterable[Learned], stated: Mapping[str, int], safety_factor: float
) -> Share:
    """Return what a job counts with on a GPU of this model.

    `stated` has the budgets that a person has set, by tag. A job that ran out of memory alone, or three times beside
    others, shares no GPU any more.
    """
    tag = job.sibling_tag
    if not tag:
        return Share(job.budget_bytes)
    if job.alone or job.above_bytes or job.losses >= LOSS_LIMIT:
        return Share(0)
    if tag in stated:
        return Share(round_budget(stated[tag]))
    known = find(learned, tag, gpu_model)
    if known.jobs_max == 1:
        return Share(0)
    return Share(budget(known, safety_factor), known.jobs_max, known.is_whole)


def budget(known: Learned, safety_factor: float) -> int:
    """Return the budget of a sibling on this model of GPU, which siblings share unrounded; 0 while nothing is known."""
    return int(known.peak_bytes / safety_factor)


def describe(job: JobRow, learned: Iterable[Learned], stated: Mapping[str, int], safety_factor: float) -> Iterator[str]:
    """Yield in words what the memory of a job with mem=auto is known by."""
    if not (tag := job.sibling_tag):
        yield "mem=auto without a tag: it has its GPU alone"
    elif tag in stated:
        yield f"the jobs tagged {tag} count with {stated[tag] // MIB} MiB: gpusched set mem.{tag}"
    elif not (known := [each for each in learned if each.tag == tag]):
        yield f"the memory of the jobs tagged {tag} is not known yet: the first has its GPU alone until it has settled"
    else:
        for each in known:
            most = f"; at most {each.jobs_max} a GPU, since an out-of-memory" if each.jobs_max else ""
            used = f"{each.peak_bytes // MIB} MiB at most ({_SOURCES.get(each.source, each.source)})"
            counted = f"they count with {budget(each, safety_factor) // MIB} MiB{most}"
            yield f"the jobs tagged {tag} have used {used} on {each.gpu_model}: {counted}"


def to_json(learned: Iterable[Learned]) -> str:
    """Return all that is known, as the queue stores it."""
    return json.dumps([asdict(each) for each in learned])


@stored_value()
def from_json(text: str | None) -> tuple[Learned, ...]:
    """Return what to_json() wrote; nothing where nothing is stored."""
    return tuple(Learned(**each) for each in json.loads(text or "[]"))
