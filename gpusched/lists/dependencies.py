"""What the jobs of a list wait for: references that name nothing, and circles. Waits for nothing and holds no queue."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from gpusched.common.quantities import nearest
from gpusched.core.model import JobSpec
from gpusched.lists.findings import Finding

_SHOWN_JOBS = 6
_EXPLAINED = 20  # findings that get a place and a guess of what was meant


def check(specs: Sequence[JobSpec], data: bytes = b"", *, known: Collection[str] = ()) -> list[Finding]:
    """Find what can never come true. `known` are names and tags that the queue has besides, `data` the list's text.

    Ids are digits; which of them there are only the queue knows.
    """
    if not any(spec.attributes.after for spec in specs):
        return []
    groups = _groups(specs)
    findings = list(_unknown(specs, groups, known))
    if not findings:
        findings += _circles(specs, groups)
    lines = data.split(b"\n") if findings else []
    return [_placed(finding, lines) for finding in findings[:_EXPLAINED]] + findings[_EXPLAINED:]


def _groups(specs: Sequence[JobSpec]) -> dict[str, list[int]]:
    """Name or tag -> positions of the jobs that have it. A name counts before a tag of the same spelling."""
    groups: dict[str, list[int]] = {}
    names: dict[str, list[int]] = {}
    for n, spec in enumerate(specs):
        for tag in spec.attributes.tags:
            groups.setdefault(tag, []).append(n)
        if spec.attributes.name:
            names[spec.attributes.name] = [n]
    return groups | names


def references(spec: JobSpec) -> Iterator[str]:
    """The names and tags that a job waits for."""
    for dependency in spec.attributes.after:
        yield from (ref for ref in dependency.refs if not ref.isdigit())


def _unknown(specs: Sequence[JobSpec], groups: Collection[str], known: Collection[str]) -> Iterator[Finding]:
    hint = "after= takes the names, tags and ids of jobs of the same queue"
    found: set[tuple[int, str]] = set()  # the jobs of a sweep have one line
    for spec in specs:
        for ref in references(spec):
            if ref not in groups and ref not in known and (spec.line, ref) not in found:
                found.add((spec.line, ref))
                meant = nearest(ref, [*groups, *known]) if len(found) <= _EXPLAINED else ""
                advice = f"; did you mean {meant}?" if meant else ""
                message = f"no job has the name or the tag {ref}{advice}"
                source = ref.encode() if len(found) <= _EXPLAINED else b""
                yield Finding("error", "unknown-job", spec.line, message, hint, source=source)


def _circles(specs: Sequence[JobSpec], groups: dict[str, list[int]]) -> Iterator[Finding]:
    """One finding for the jobs that wait for each other, if there are any."""
    # A job waits for groups, a group for its jobs: so many jobs of one tag make no squares of arrows.
    names = list(groups)
    number = {name: len(specs) + n for n, name in enumerate(names)}
    waits = list(_arrows(specs, groups, number))
    waits += (groups[name] for name in names)
    waited_by: list[list[int]] = [[] for _ in waits]
    open_ends = [len(aims) for aims in waits]
    for node, aims in enumerate(waits):
        for aim in aims:
            waited_by[aim].append(node)
    free = [node for node, count in enumerate(open_ends) if not count]
    while free:
        for node in waited_by[free.pop()]:
            open_ends[node] -= 1
            if not open_ends[node]:
                free.append(node)
    start = next((node for node, count in enumerate(open_ends) if count), -1)
    if start >= 0:
        yield _circle(specs, names, waits, open_ends, start)


def _arrows(specs: Sequence[JobSpec], groups: dict[str, list[int]], number: dict[str, int]) -> Iterator[list[int]]:
    """What each job waits for: groups. One that is of such a group itself waits for the others of it."""
    named = {spec.attributes.name for spec in specs}
    first: dict[str, int] = {}  # of those that are of the group that they wait for
    for n, spec in enumerate(specs):
        aims: list[int] = []
        for ref in references(spec):
            if ref not in number:
                continue
            if ref in named or ref not in spec.attributes.tags:
                aims.append(number[ref])
            elif first.setdefault(ref, n) == n:
                aims += (other for other in groups[ref] if other != n)
            else:
                aims.append(first[ref])  # which waits for this one: a circle, and one arrow says so
        yield aims


def _circle(
    specs: Sequence[JobSpec], names: Sequence[str], waits: list[list[int]], open_ends: list[int], node: int
) -> Finding:
    """Follow what never becomes free until it comes round."""
    path: list[int] = []
    place: dict[int, int] = {}
    while node not in place:
        place[node] = len(path)
        path.append(node)
        node = next(aim for aim in waits[node] if open_ends[aim])
    circle = path[place[node] :]
    jobs = [n for n in circle if n < len(specs)]
    first = jobs.index(min(jobs))
    jobs = jobs[first:] + jobs[:first]
    shown = [_called(specs[n]) for n in jobs[:_SHOWN_JOBS]] + ["…"] * (len(jobs) > _SHOWN_JOBS)
    line = specs[jobs[0]].line
    after = circle[(circle.index(jobs[0]) + 1) % len(circle)]
    if after >= len(specs):
        ref = names[after - len(specs)]
    else:
        ref = next(ref for ref in references(specs[jobs[0]]) if ref in specs[after].attributes.tags)
    if len(jobs) == 1:
        message = f"the job waits for itself: {ref} is its own"
    else:
        message = f"these jobs wait for each other: {' -> '.join([*shown, shown[0]])}"
    return Finding("error", "circle", line, message, "take one of them out", source=ref.encode())


def _called(spec: JobSpec) -> str:
    return f"{spec.attributes.name} (line {spec.line})" if spec.attributes.name else f"line {spec.line}"


def _placed(finding: Finding, lines: Sequence[bytes]) -> Finding:
    """With the nearest line that waits for what it names. A directive may stand above, a key of a map below."""
    whole = re.compile(rb"(?<![\w.+@:/-])%b(?![\w.+@:/-])" % re.escape(finding.source))
    here = finding.line - 1
    best: tuple[int, int, int] | None = None
    for n, line in enumerate(lines):
        after = line.find(b"after")
        match = whole.search(line, after + len(b"after")) if after >= 0 else None
        if match is not None and (best is None or abs(n - here) < best[0]):
            best = abs(n - here), n, match.start()
    if best is None:
        return replace(finding, source=b"")
    return replace(finding, line=best[1] + 1, source=lines[best[1]].rstrip(b"\r"), at=best[2])
