"""Make jobs and findings of commands with attributes and parameters.

Reads no format: job files and the command line pass their entries in the same form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gpusched.core.jobs.job import Attributes, JobSpec
from gpusched.lists.attributes import make, state, state_value
from gpusched.lists.blocks import opens_block, read_block
from gpusched.lists.finding_table import fault
from gpusched.lists.findings import Finding
from gpusched.lists.joblist import BLANK, JobFile, is_empty, judge, stripped
from gpusched.lists.parameters import MAX_JOBS, Axis, combinations, count, matches
from gpusched.lists.template import Template, unfilled

Piece = tuple[int, int, bytes, int]  # offset in a text, number of the line, the line, offset in it


class Spot(NamedTuple):
    """A position in a source, for findings about a text that begins there.

    `pieces`: the text stands there unchanged, in pieces: for each its offset in the text, its line, and its offset in
    that. `below`: the lines of the source after this one, each of which ends with a line of the text.
    """

    line: int
    source: bytes = b""
    at: int = 0
    pieces: tuple[Piece, ...] = ()
    below: tuple[bytes, ...] = ()

    def within(self, text: bytes, at: int) -> Spot:
        """Return the position of an offset into the text."""
        if self.pieces:
            start, line, source, begin = next(piece for piece in reversed(self.pieces) if piece[0] <= at)
            return Spot(line, source, min(begin + at - start, len(source)))
        before = text[:at]
        n = before.count(b"\n")
        if n < len(self.below):
            source = self.below[n]
            rest = len(text.split(b"\n")[n]) - (at - (before.rfind(b"\n") + 1))
            return Spot(self.line + 1 + n, source, max(0, len(source) - rest))
        return self if self.source else Spot(self.line, text, at)


def exact_spot(line: int, source: bytes, at: int = 0) -> Spot:
    """Return the position of a text that a line of the source has unchanged."""
    return Spot(line, source, at, ((0, line, source, at),))


class StatedAttributes(NamedTuple):
    """An attribute of an entry; its value may have placeholders."""

    key: str
    value: str
    spot: Spot


class ListEntry(NamedTuple):
    """A job, or all jobs of a sweep. `block`: the command may begin with attributes.

    `is_typed`: it comes from the command line, where a word in braces that nothing fills is a slip.
    """

    command: str
    spot: Spot
    attributes: Sequence[StatedAttributes] = ()
    axes: Sequence[Axis] = ()
    excluded: Sequence[tuple[Mapping[str, Collection[str]], Spot]] = ()
    block: bool = False
    is_typed: bool = False

    @property
    def names(self) -> list[str]:
        return [name for axis in self.axes for name in axis.names]

    def moved(self) -> ListEntry:
        """Return the entry for a text in which offsets are not those in the source any more."""
        return self._replace(spot=self.spot._replace(pieces=()))


class Maker:
    """The jobs and findings of a source, in its order: counts repeated jobs and checks that names are unique.

    `force` turns forceable errors into warnings; lines that only set something up are then skipped.
    `strip_gpu_env` removes a line's own choice of GPUs from `command`, never from `text`. `gpus` is the number
    of GPUs for a job that states none. A line with an error makes no job.
    """

    def __init__(self, *, force: bool = False, strip_gpu_env: bool = False, gpus: int = 1) -> None:
        self._force = force
        self._strip = strip_gpu_env
        self._gpus = gpus
        self._specs: list[JobSpec] = []
        self._findings: list[Finding] = []
        self._occurrences: dict[object, tuple[int, int]] = {}  # identity -> count, first line
        self._names: dict[str, int] = {}  # name -> line
        self._reported: set[tuple[str, Spot]] = set()

    def take(self, *, complete: bool) -> JobFile:
        """Return the jobs and findings since the last call."""
        jobs = JobFile(tuple(self._specs), tuple(self._findings), complete)
        self._specs, self._findings = [], []
        return jobs

    def report(self, fault: Finding, spot: Spot, text: bytes = b"") -> bool:
        """Add a finding, once for each code and position. Return True if it refuses the job."""
        position = spot.within(text, fault.at)
        finding = fault.placed(position.line, position.source, position.at, force=self._force)
        key = fault.code, position if spot.source else spot
        if key not in self._reported:
            self._reported.add(key)
            self._findings.append(finding)
        return finding.severity == "error"

    # ---- entries ----

    def add(self, entry: ListEntry) -> None:
        """Make the jobs of an entry."""
        names = entry.names
        twice = [name for n, name in enumerate(names) if name in names[:n]]
        if twice:
            self.report(fault("sweep.twice", name=twice[0]), entry.spot)
            return
        if (number := count(entry.axes)) > MAX_JOBS:
            self.report(fault("sweep.size", jobs=number, most=MAX_JOBS), entry.spot)
            return
        command = Template(entry.command, names, shell=True)
        templates = [(key, Template(value, names), spot) for key, value, spot in entry.attributes]
        self._check_names(entry, command, [template for _, template, _ in templates])
        combinations = 0
        for values in self._combinations(entry):
            combinations += 1
            try:
                text = command.fill(values).encode("utf-8", "surrogateescape")
            except ValueError as error:
                self.report(fault("placeholder", error=error), entry.spot)
                continue
            stated: dict[str, Any] = {}
            valid = [self._state(stated, key, value.fill(values), spot) for key, value, spot in templates]
            if all(valid):
                is_unchanged = text == entry.command.encode("utf-8", "surrogateescape")
                self.make_job(text, stated, entry if is_unchanged else entry.moved())
        if not combinations and entry.axes:
            self.report(fault("sweep.empty"), entry.spot)

    def _state(self, attribute_values: dict[str, Any], key: str, text: str, spot: Spot) -> bool:
        """Parse a value into `attribute_values`. Return False if it cannot be right."""
        problem = state_value(attribute_values, key, text.encode("utf-8", "surrogateescape"))
        return problem is None or not self.report(problem, spot)

    def _check_names(self, entry: ListEntry, command: Template, others: Iterable[Template]) -> None:
        """Report parameters that nothing uses, and words in braces that no parameter fills."""
        used = command.names.union(*(template.names for template in others))
        for axis in entry.axes:
            is_odd = entry.is_typed or len(axis.rows) > 1
            if used.isdisjoint(axis.names) and is_odd and axis.names != ("repeat",):
                names = ", ".join(f"{{{name}}}" for name in axis.names[:5])
                self.report(fault("unused-parameter", names=names), entry.spot)
        for at, word, similar in unfilled(entry.command, entry.names):
            name = "unfilled" if entry.is_typed else "near-parameter"
            if entry.is_typed or similar:
                meant = f"; did you mean {{{similar}}}?" if similar else ""
                problem = fault(name, at, word=word, suggestion=meant)
                self.report(problem, entry.spot, entry.command.encode("utf-8", "surrogateescape"))

    def _combinations(self, entry: ListEntry) -> Iterator[dict[str, str]]:
        """Yield the values of each job. Report exclusions that exclude nothing."""
        used: set[int] = set()
        for values in combinations(entry.axes):
            hits = [n for n, (pattern, _) in enumerate(entry.excluded) if matches(values, pattern)]
            used.update(hits)
            if not hits:
                yield values
        for n, (_, spot) in enumerate(entry.excluded):
            if n not in used:
                self.report(fault("exclude"), spot)

    # ---- jobs ----

    def make_job(self, text: bytes, stated: dict[str, Any], entry: ListEntry) -> None:
        """Judge a whole command, and make a job of it unless a fault forbids that."""
        spot, is_refused, name_at = entry.spot, False, 0
        if opens_block(text.lstrip(BLANK)):
            start = text.index(b"[")
            if not entry.block:
                self.report(fault("attribute-end.map", start), spot, text)
                return
            block = read_block(text, start)
            is_refused = self.report_all(state(block, stated), spot, text)
            if block.fault is not None:
                return
            name_at = next((word.at for word in block.words if word.key == "name"), 0)
            text = b" " * block.end + text[block.end :]  # every offset stays
            if is_empty(text):
                self.report(fault("no-command", block.end - 1), spot, text)
                return
        attributes = make(stated)
        if attributes.name in self._names:
            taken = fault("name-taken", name_at, owner=self._names[attributes.name], name=attributes.name)
            stated_at = (each.spot for each in entry.attributes if each.key == "name")
            is_refused |= self.report(taken, next(stated_at, spot), text)
        elif attributes.name:
            self._names[attributes.name] = spot.line
        gpus = self._gpus if attributes.gpus is None else attributes.gpus
        checked = judge(text, gpus=gpus, strip=self._strip)
        is_refused |= self.report_all(checked.faults, spot, text)
        if not (is_refused or checked.setup):
            self.admit(_bare(text), _bare(checked.command), spot.line, attributes)

    def admit(self, text: bytes, command: bytes, line: int, attributes: Attributes) -> None:
        """Add a job."""
        key: object = text
        if attributes.env or attributes.cwd is not None:
            key = text, attributes.cwd, frozenset(attributes.env)
        before, first = self._occurrences.get(key, (0, line))
        self._occurrences[key] = before + 1, first
        self._specs.append(JobSpec(command, text, line, before + 1, attributes))
        if first != line:  # the jobs of a sweep have one line
            self.report(fault("duplicate", line=line, first=first), Spot(line))

    def report_all(self, faults: Iterable[Finding], spot: Spot, text: bytes) -> bool:
        """Add these findings. Return True if one of them refuses the job."""
        return bool([each for each in faults if self.report(each, spot, text)])


def _bare(text: bytes) -> bytes:
    return stripped(text.strip(b"\n"))


def from_command(command: str, axes: Sequence[Axis], *, is_typed: bool = True, **options: Any) -> JobFile:
    """Make the jobs of one command with parameters; it may begin with attributes. `options` as for Maker.

    In a typed one each {word} must be a parameter.
    """
    maker = Maker(**options)
    spot = Spot(1) if axes else exact_spot(1, command.encode("utf-8", "surrogateescape"))
    maker.add(ListEntry(command, spot, axes=axes, block=True, is_typed=is_typed))
    return maker.take(complete=True)
