"""Commands with attributes and parameters -> the jobs that they stand for, and what is wrong with them.

Reads no format: job files and the command line hand their entries over in the same form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpusched.core.model import Attributes, JobSpec
from gpusched.lists.attributes import doubtful, make, parse_value, state, wrong_value
from gpusched.lists.blocks import opens_block, read_block
from gpusched.lists.findings import Finding
from gpusched.lists.joblist import BLANK, JobFile, Register, judge_text, stripped
from gpusched.lists.lint import Fault
from gpusched.lists.sweep import MAX_JOBS, Axis, combinations, count, matches
from gpusched.lists.template import Template, misspelt, undeclared


class Spot(NamedTuple):
    """A place in a source. `verbatim`: the text that is meant stands there as it is, so that places in it count.

    `below`: its lines stand there, each as the end of a line of the source.
    """

    line: int
    source: bytes = b""
    at: int = 0
    verbatim: bool = False
    below: tuple[bytes, ...] = ()

    def within(self, text: bytes, at: int) -> Spot:
        """The place of an offset into the text that is meant."""
        before = text[:at]
        n = before.count(b"\n")
        if n < len(self.below):
            source = self.below[n]
            rest = len(text.split(b"\n")[n]) - (at - (before.rfind(b"\n") + 1))
            return Spot(self.line + 1 + n, source, max(0, len(source) - rest))
        if self.verbatim:
            return self._replace(at=self.at + at)
        return self if self.source else Spot(self.line, text, at)


class StatedAttributes(NamedTuple):
    """An attribute as an entry gives it, perhaps with placeholders."""

    key: str
    value: str
    spot: Spot


@dataclass(frozen=True, slots=True)
class ListEntry:
    """A job, or all the jobs of a sweep. `block`: the command may begin with attributes of its own."""

    command: str
    spot: Spot
    stated: Sequence[StatedAttributes] = ()
    axes: Sequence[Axis] = ()
    excluded: Sequence[tuple[Mapping[str, Collection[str]], Spot]] = ()
    block: bool = False

    @property
    def names(self) -> list[str]:
        return [name for axis in self.axes for name in axis.names]


class Maker:
    """The jobs of one source, in its order."""

    def __init__(self, *, force: bool = False, strip_gpu_env: bool = False, gpus: int = 1) -> None:
        self._force = force
        self._strip = strip_gpu_env
        self._gpus = gpus
        self._jobs = Register()
        self._specs: list[JobSpec] = []
        self._findings: list[Finding] = []
        self._told: set[tuple[str, Spot]] = set()

    def finish(self, *, complete: bool = True) -> JobFile:
        return JobFile(tuple(self._specs), tuple(self._findings), complete)

    def report(self, fault: Fault, spot: Spot, text: bytes = b"") -> bool:
        """Make a finding of it, once for each code and place; say whether it refuses the job."""
        severity = fault.severity
        if severity == "error" and self._force and fault.forceable:
            severity = "warning"
        place = spot.within(text, fault.at)
        told = fault.code, place if spot.source else spot
        if told not in self._told:
            self._told.add(told)
            forceable = fault.forceable and fault.severity == "error"
            line, source, at = place.line, place.source, place.at
            self._findings.append(Finding(severity, fault.code, line, fault.message, fault.hint, forceable, source, at))
        return severity == "error"

    def error(self, code: str, message: str, spot: Spot, hint: str = "") -> None:
        self.report(Fault(code, "error", 0, message, hint, False), spot)

    # ---- entries ----

    def add(self, entry: ListEntry) -> None:
        """Make the jobs of an entry."""
        if not self._check(entry):
            return
        names = entry.names
        command = Template(entry.command, names, shell=True)
        templates = [(key, Template(value, names), spot) for key, value, spot in entry.stated]
        self._check_names(entry, command, [template for _, template, _ in templates])
        made = 0
        for values in self._combinations(entry):
            made += 1
            try:
                text = command.fill(values).encode("utf-8", "surrogateescape")
            except ValueError as error:
                self.error("placeholder", str(error), entry.spot, "pass it in a variable: env: {X: '{name}'}, and $X")
                continue
            stated: dict[str, Any] = {}
            wrong = False
            for key, template, spot in templates:
                value = template.fill(values).encode("utf-8", "surrogateescape")
                try:
                    stated[key] = parsed = parse_value(key, value)
                except ValueError as error:
                    wrong |= self.report(wrong_value(key, value, error, 0), spot)
                else:
                    if (doubt := doubtful(key, value, parsed, 0)) is not None:
                        self.report(doubt, spot)
            if not wrong:
                self._job(text, stated, entry)
        if not made and entry.axes:
            self.error("sweep", "no combination is left: all are excluded", entry.spot)

    def _check(self, entry: ListEntry) -> bool:
        names = entry.names
        twice = [name for n, name in enumerate(names) if name in names[:n]]
        if twice:
            self.error("sweep", f"the parameter {twice[0]} is set in two ways", entry.spot)
        number = count(entry.axes)
        if number > MAX_JOBS:
            self.error("sweep", f"this makes {number:,} jobs, and at most {MAX_JOBS:,} are taken", entry.spot)
        return not twice and number <= MAX_JOBS

    def _check_names(self, entry: ListEntry, command: Template, others: Iterable[Template]) -> None:
        """Tell of parameters that nothing uses, and of placeholders that are none."""
        used = command.names.union(*(template.names for template in others))
        for axis in entry.axes:
            unused = [name for name in axis.names if name not in used]
            if len(unused) == len(axis.names) and len(axis.rows) > 1 and axis.names != ("repeat",):
                shown = ", ".join(f"{{{name}}}" for name in unused[:5])
                what = "stand" if len(unused) > 1 else "stands"
                message = f"{shown} {what} nowhere in the command: {len(axis.rows)} jobs differ in nothing"
                self.report(Fault("unused-parameter", "warning", 0, message, "", False), entry.spot)
        for at, word, meant in misspelt(entry.command, entry.names):
            message = f"{{{word}}} is no parameter and stays as it is; did you mean {{{meant}}}?"
            self.report(Fault("near-parameter", "warning", at, message, "", False), entry.spot, entry.command.encode())

    def _combinations(self, entry: ListEntry) -> Iterator[dict[str, str]]:
        idle = list(entry.excluded)
        for values in combinations(entry.axes):
            hit = next((item for item in entry.excluded if matches(values, item[0])), None)
            if hit is None:
                yield values
            elif hit in idle:
                idle.remove(hit)
        for _, spot in idle:
            message = "this excludes nothing: no combination has these values"
            self.report(Fault("exclude", "warning", 0, message, "values are compared as text", False), spot)

    # ---- jobs ----

    def _job(self, text: bytes, stated: dict[str, Any], entry: ListEntry) -> None:
        spot = entry.spot
        if spot.verbatim and text != entry.command.encode("utf-8", "surrogateescape"):
            spot = spot._replace(verbatim=False)
        if opens_block(text.lstrip(BLANK)):
            start = text.index(b"[")
            block = read_block(text, start)
            faults = state(block.words, stated) if entry.block else [_BLOCK_HERE._replace(at=start)]
            if block.fault is not None and entry.block:
                faults.append(block.fault)
            if [fault for fault in faults if self.report(fault, spot, text)] or block.end < 0:
                return
            text = b" " * block.end + text[block.end :]
        attributes = make(stated)
        if attributes.name and not self._take_name(attributes, entry):
            return
        gpus = self._gpus if attributes.gpus is None else attributes.gpus
        judged = judge_text(text, gpus=gpus, strip=self._strip)
        refused = [fault for fault in judged.faults if self.report(fault, spot, text)]
        if refused or judged.setup:
            return
        spec, first = self._jobs.admit(_bare(text), _bare(judged.command), spot.line, attributes)
        self._specs.append(spec)
        if first and not any(axis.names == ("repeat",) for axis in entry.axes):
            message = f"line {spot.line} repeats line {first}"
            if first == spot.line:
                message = f"line {first} makes the same job more than once"
            self.report(Fault("duplicate", "hint", 0, message), Spot(spot.line))

    def _take_name(self, attributes: Attributes, entry: ListEntry) -> bool:
        owner = self._jobs.take_name(attributes.name, entry.spot.line)
        if not owner:
            return True
        spot = next((stated.spot for stated in entry.stated if stated.key == "name"), entry.spot)
        hint = "each name is for one job; tag: is for many"
        message = f"the name {attributes.name} is that of line {owner} already"
        if owner == entry.spot.line and entry.axes:
            message = f"several jobs of line {owner} have the name {attributes.name}"
            hint = "put its parameters into the name: " + "-".join(f"{{{name}}}" for name in entry.names[:4])
        self.error("name-taken", message, spot, hint)
        return False


def _bare(text: bytes) -> bytes:
    return stripped(text.strip(b"\n"))


_BLOCK_HERE = Fault(
    "attribute-end", "error", 0, "attributes stand beside the command here, not before it", "gpus: 2, mem: 18G", False
)


def from_command(
    command: str, axes: Sequence[Axis], *, force: bool = False, strip_gpu_env: bool = False, gpus: int = 1
) -> JobFile:
    """The jobs of one command with parameters; it may begin with attributes."""
    maker = Maker(force=force, strip_gpu_env=strip_gpu_env, gpus=gpus)
    source = command.encode("utf-8", "surrogateescape")
    spot = Spot(1) if axes else Spot(1, source, verbatim=True)
    for at, word in () if axes else undeclared(command, ()):
        message = f"{{{word}}} stays as it is: no parameter is given"
        maker.report(
            Fault("no-parameter", "warning", at, message, f"-p {word}=…, if it was meant", False), spot, source
        )
    maker.add(ListEntry(command, spot, axes=axes, block=True))
    return maker.finish()
