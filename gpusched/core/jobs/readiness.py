"""Dependencies between jobs: resolve names, tags and ids, find cycles, and decide if a job may start. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from enum import Enum
from typing import NamedTuple

from gpusched.core.jobs.job import ENDED_STATES, Dependency, DependencyKind, JobState

CAUSE_DEPENDENCY = "dependency"  # cancelled or held because of a job that it depends on
CAUSE_NOT_NEEDED = "not_needed"  # cancelled because no failure called for it: it counts in no total


class Readiness(str, Enum):
    READY = "ready"
    WAITING = "waiting"
    IMPOSSIBLE = "impossible"  # as things stand; a requeued job can change that
    UNNEEDED = "unneeded"  # the same, but only since failures did not come


class ListedJob(NamedTuple):
    """A job that can be depended on."""

    id: int
    name: str = ""
    tags: tuple[str, ...] = ()


class UnknownReference(Exception):
    """A reference, `ref`, that names no job."""

    def __init__(self, ref: str) -> None:
        super().__init__(ref)
        self.ref = ref


class JobIndex:
    """Names, tags and ids of jobs. A name has precedence over a tag of the same spelling; an id is all digits.

    `earlier` are jobs that are no longer in the list. Jobs of the list take precedence over their names and tags.
    `met` are the names and tags of jobs that have succeeded and were cleaned away: nobody waits for them.
    """

    def __init__(
        self, jobs: Iterable[ListedJob], earlier: Iterable[ListedJob] = (), met: frozenset[str] = frozenset()
    ) -> None:
        self._met = met
        self._names: dict[str, int] = {}
        self._tags: dict[str, list[int]] = {}
        self._ids: set[int] = set()
        self._resolved: dict[tuple[str, ...], tuple[tuple[int, ...], frozenset[int]]] = {}  # a cache
        self._add(jobs, frozenset())
        self._add(earlier, {*self._names, *self._tags})

    def _add(self, jobs: Iterable[ListedJob], taken: Set[str]) -> None:
        for job in jobs:
            self._ids.add(job.id)
            if job.name and job.name not in taken:
                self._names[job.name] = job.id
            for tag in job.tags:
                if tag not in taken:
                    self._tags.setdefault(tag, []).append(job.id)

    def names(self) -> list[str]:
        """All names and tags, for a hint."""
        return list(dict.fromkeys((*self._names, *self._tags)))

    def find(self, ref: str) -> tuple[int, ...]:
        """Return the jobs that `ref` names. Raises UnknownReference."""
        if ref in self._names:
            return (self._names[ref],)
        if ref in self._tags:
            return tuple(self._tags[ref])
        if ref.isascii() and ref.isdigit() and int(ref) in self._ids:
            return (int(ref),)
        if ref in self._met:
            return ()
        raise UnknownReference(ref)

    def resolve(self, job_id: int, after: Sequence[Dependency]) -> list[tuple[DependencyKind, tuple[int, ...]]]:
        """Return the jobs of each dependency. A job that waits for a tag of its own waits for the others with it."""
        groups = [(dependency, self._members(job_id, dependency.refs)) for dependency in after]
        return [(dependency.kind, members) for dependency, members in groups if not self._is_met(dependency, members)]

    def _is_met(self, dependency: Dependency, members: Sequence[int]) -> bool:
        """Return True if jobs that were cleaned away are enough. Raises UnknownReference if they should have failed."""
        met = self._met.intersection(dependency.refs)
        if met and not members and dependency.kind is DependencyKind.FAILED:
            raise UnknownReference(min(met))
        return bool(met) and (not members or dependency.kind is DependencyKind.ANY)

    def _members(self, job_id: int, refs: tuple[str, ...]) -> tuple[int, ...]:
        if refs not in self._resolved:
            ids = tuple(dict.fromkeys(i for ref in refs for i in self.find(ref)))
            self._resolved[refs] = ids, frozenset(ids)
        ids, id_set = self._resolved[refs]
        if job_id not in id_set:
            return ids
        kept = [i for ref in refs for i in self.find(ref) if i != job_id or ref in self._names or ref not in self._tags]
        return tuple(dict.fromkeys(kept))


def find_cycle(upstream: Mapping[int, Iterable[int]]) -> list[int]:
    """Return jobs that wait for each other in a circle, each for the next one; empty if there is no circle."""
    from graphlib import CycleError, TopologicalSorter

    try:
        TopologicalSorter(upstream).prepare()
    except CycleError as error:
        circle: list[int] = error.args[1]  # each is waited for by the next one, and the first comes again at the end
        return circle[:0:-1]
    return []


class DependencyTally(NamedTuple):
    """The jobs of one dependency, counted by the way in which they have ended (`end_of`)."""

    total: int
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    unneeded: int = 0

    @property
    def all_ended(self) -> bool:
        return self.total == self.succeeded + self.failed + self.cancelled + self.unneeded


def end_of(state: JobState, cause: str) -> str:
    """Return how a job counts for those that wait for it, as a field of DependencyTally; "" if it has not ended.

    A job that was cancelled because it could never start counts as failed, whatever kept it from starting.
    """
    if state is JobState.CANCELLED:
        return {CAUSE_DEPENDENCY: "failed", CAUSE_NOT_NEEDED: "unneeded"}.get(cause, "cancelled")
    return state.value if state in ENDED_STATES else ""


def readiness(groups: Iterable[tuple[DependencyKind, DependencyTally]]) -> Readiness:
    """Decide if a job may start, by the jobs of each of its dependencies.

    One that waits is not yet called unneeded, since a failure elsewhere has precedence, in whatever order they end.
    """
    results = {readiness_of(kind, tally) for kind, tally in groups}
    worst_first = (Readiness.IMPOSSIBLE, Readiness.WAITING, Readiness.UNNEEDED)
    return next((result for result in worst_first if result in results), Readiness.READY)


def readiness_of(kind: DependencyKind, tally: DependencyTally) -> Readiness:
    """Decide if one dependency is met."""
    is_hopeless = bool(tally.failed or tally.cancelled)
    if kind is DependencyKind.SUCCEEDED and is_hopeless:
        return Readiness.IMPOSSIBLE
    if kind is DependencyKind.ANY and tally.succeeded:
        return Readiness.READY
    if not tally.all_ended:
        return Readiness.WAITING
    if kind is DependencyKind.FAILED:
        return Readiness.READY if tally.failed else Readiness.UNNEEDED
    if kind is DependencyKind.ENDED or tally.succeeded == tally.total:
        return Readiness.READY
    return Readiness.IMPOSSIBLE if is_hopeless else Readiness.UNNEEDED
