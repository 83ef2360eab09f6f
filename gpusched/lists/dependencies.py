"""Check the dependencies in a list of jobs: unknown references, and circles. Knows no queue."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from gpusched.core.jobs.readiness import JobIndex, ListedJob, find_cycle
from gpusched.core.model import JobSpec
from gpusched.lists.finding_table import fault, suggest
from gpusched.lists.findings import Finding

_SHOWN_JOBS = 6
_EXPLAINED = 20  # findings that get a suggestion


def check(specs: Sequence[JobSpec], *, known: Collection[str] = ()) -> list[Finding]:
    """Return the findings about dependencies that can never be met.

    `known` are further names and tags of the queue. References by id (digits) are not checked, since only the queue
    knows its ids.
    """
    if not any(spec.attributes.after for spec in specs):
        return []
    index = JobIndex(ListedJob(n, spec.attributes.name, spec.attributes.tags) for n, spec in enumerate(specs))
    groups = {name: index.find(name) for name in index.names()}  # the jobs of each name or tag
    return list(_unknown(specs, groups, known)) or list(_circle(specs, groups))


def references(spec: JobSpec) -> Iterator[str]:
    """Yield the names and tags that a job waits for."""
    for dependency in spec.attributes.after:
        yield from (ref for ref in dependency.refs if not ref.isdigit())


def _unknown(specs: Sequence[JobSpec], groups: Collection[str], known: Collection[str]) -> Iterator[Finding]:
    lines: dict[str, int] = {}  # reference -> the first job that has it
    for spec in specs:
        for ref in references(spec):
            if ref not in groups and ref not in known:
                lines.setdefault(ref, spec.line)
    for n, (ref, line) in enumerate(lines.items()):
        suggestion = suggest(ref, [*groups, *known]) if n < _EXPLAINED else ""
        yield fault("unknown-job", ref=ref, suggestion=suggestion).placed(line)


def _circle(specs: Sequence[JobSpec], groups: Mapping[str, tuple[int, ...]]) -> Iterator[Finding]:
    """Yield one finding for jobs that wait for each other, if there are any."""
    # Nodes are jobs and groups: a job waits for groups, a group for its jobs. So n jobs of a tag need no n² edges.
    number = {name: len(specs) + n for n, name in enumerate(groups)}
    waits = dict(enumerate([*_edges(specs, groups, number), *groups.values()]))
    jobs = [n for n in find_cycle(waits) if n < len(specs)]
    if not jobs:
        return
    first = jobs.index(min(jobs))
    jobs = jobs[first:] + jobs[:first]
    texts = [_name(specs[n]) for n in jobs[:_SHOWN_JOBS]] + ["…"] * (len(jobs) > _SHOWN_JOBS)
    yield fault("circle", jobs=" -> ".join([*texts, texts[0]])).placed(specs[jobs[0]].line)


def _edges(
    specs: Sequence[JobSpec], groups: Mapping[str, tuple[int, ...]], number: dict[str, int]
) -> Iterator[list[int]]:
    """Yield the groups that each job waits for. A job that belongs to such a group waits for the others in it."""
    named = {spec.attributes.name for spec in specs}
    first: dict[str, int] = {}  # group -> the first job in it that waits for it
    for n, spec in enumerate(specs):
        targets: list[int] = []
        for ref in references(spec):
            if ref not in number:
                continue
            if ref in named or ref not in spec.attributes.tags:
                targets.append(number[ref])
            elif first.setdefault(ref, n) == n:
                targets += (other for other in groups[ref] if other != n)
            else:
                targets.append(first[ref])  # which waits for this one: one edge shows the circle
        yield targets


def _name(spec: JobSpec) -> str:
    return f"{spec.attributes.name} (line {spec.line})" if spec.attributes.name else f"line {spec.line}"
