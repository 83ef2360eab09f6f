"""What a job waits for: names, tags and ids -> jobs, cycles found, and whether the wait is over. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gpusched.core.model import Dependency, DependencyKind, JobState

CAUSE_DEPENDENCY = "dependency"  # cancelled or held because of a job that it depends on
CAUSE_NOT_NEEDED = "not_needed"  # cancelled because what it waits for did not fail: it counts nowhere


class Readiness(str, Enum):
    READY = "ready"
    WAITING = "waiting"
    IMPOSSIBLE = "impossible"  # as things stand; a requeued job can change that


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job that can be depended on."""

    id: int
    name: str = ""
    tags: tuple[str, ...] = ()


class UnknownReference(Exception):
    """A reference that names no job: `ref`, and the names that are there."""

    def __init__(self, ref: str) -> None:
        super().__init__(ref)
        self.ref = ref


class JobIndex:
    """Names, tags and ids of jobs. A name counts before a tag of the same spelling; an id is all digits.

    `earlier` are jobs that are no longer in the list: their names and tags count where no job of the list has them.
    """

    def __init__(self, jobs: Iterable[ListedJob], earlier: Iterable[ListedJob] = ()) -> None:
        self._names: dict[str, int] = {}
        self._tags: dict[str, list[int]] = {}
        self._ids: set[int] = set()
        self._resolved: dict[tuple[str, ...], tuple[tuple[int, ...], frozenset[int]]] = {}  # many wait for the same
        for job in jobs:
            self._ids.add(job.id)
            if job.name:
                self._names[job.name] = job.id
            for tag in job.tags:
                self._tags.setdefault(tag, []).append(job.id)
        listed = {*self._names, *self._tags}
        for job in earlier:
            self._ids.add(job.id)
            if job.name and job.name not in listed:
                self._names[job.name] = job.id
            for tag in job.tags:
                if tag not in listed:
                    self._tags.setdefault(tag, []).append(job.id)

    def names(self) -> list[str]:
        """What can be named, for a hint."""
        return list(dict.fromkeys((*self._names, *self._tags)))

    def find(self, ref: str) -> tuple[int, ...]:
        """The jobs that `ref` means. Raises UnknownReference."""
        if ref in self._names:
            return (self._names[ref],)
        if ref in self._tags:
            return tuple(self._tags[ref])
        if ref.isascii() and ref.isdigit() and int(ref) in self._ids:
            return (int(ref),)
        raise UnknownReference(ref)

    def resolve(self, job_id: int, after: Sequence[Dependency]) -> list[tuple[DependencyKind, tuple[int, ...]]]:
        """The jobs behind each dependency. A job that bears a tag that it waits for waits for the others that do."""
        return [(dependency.kind, self._members(job_id, dependency.refs)) for dependency in after]

    def _members(self, job_id: int, refs: tuple[str, ...]) -> tuple[int, ...]:
        if refs not in self._resolved:
            found = tuple(dict.fromkeys(i for ref in refs for i in self.find(ref)))
            self._resolved[refs] = found, frozenset(found)
        found, known = self._resolved[refs]
        if job_id not in known:
            return found
        return tuple(dict.fromkeys(i for ref in refs for i in self._others(job_id, ref)))

    def _others(self, job_id: int, ref: str) -> tuple[int, ...]:
        found = self.find(ref)
        if ref in self._names or ref not in self._tags:
            return found
        return tuple(i for i in found if i != job_id)


def find_cycle(upstream: Mapping[int, Iterable[int]]) -> list[int]:
    """Jobs that wait for each other in a circle, each for the next one; empty when there is no circle."""
    done: set[int] = set()
    for start in upstream:
        if start in done:
            continue
        path: list[int] = [start]
        on_path = {start}
        iterators = [iter(upstream.get(start, ()))]
        while iterators:
            following = next(iterators[-1], None)
            if following is None:
                iterators.pop()
                ended = path.pop()
                on_path.discard(ended)
                done.add(ended)
            elif following in on_path:
                return path[path.index(following) :]
            elif following not in done:
                path.append(following)
                on_path.add(following)
                iterators.append(iter(upstream.get(following, ())))
    return []


@dataclass(frozen=True, slots=True)
class DependencyTally:
    """How the jobs of one dependency stand: how many there are, and how many have ended in which way."""

    total: int
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    @classmethod
    def of(cls, states: Sequence[JobState]) -> DependencyTally:
        ends = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
        return cls(len(states), *(sum(state is end for state in states) for end in ends))

    @property
    def all_ended(self) -> bool:
        return self.total == self.succeeded + self.failed + self.cancelled


def readiness(groups: Iterable[tuple[DependencyKind, DependencyTally]]) -> Readiness:
    """Whether a job may start, given how the jobs of each of its dependencies stand."""
    worst = Readiness.READY
    for kind, tally in groups:
        found = readiness_of(kind, tally)
        if found is Readiness.IMPOSSIBLE:
            return found
        if found is Readiness.WAITING:
            worst = found
    return worst


def is_unneeded(groups: Iterable[tuple[DependencyKind, DependencyTally]]) -> bool:
    """Whether a job that cannot start any more was only to start after a failure that did not come."""
    lost = {kind for kind, tally in groups if readiness_of(kind, tally) is Readiness.IMPOSSIBLE}
    return lost == {DependencyKind.FAILED}


def readiness_of(kind: DependencyKind, tally: DependencyTally) -> Readiness:
    """Whether one dependency is met."""
    if kind is DependencyKind.SUCCEEDED:
        if tally.succeeded == tally.total:
            return Readiness.READY
        return Readiness.IMPOSSIBLE if tally.failed or tally.cancelled else Readiness.WAITING
    if kind is DependencyKind.ANY:
        if tally.succeeded or not tally.total:
            return Readiness.READY
        return Readiness.IMPOSSIBLE if tally.all_ended else Readiness.WAITING
    if not tally.all_ended:
        return Readiness.WAITING
    return Readiness.IMPOSSIBLE if kind is DependencyKind.FAILED and not tally.failed else Readiness.READY
