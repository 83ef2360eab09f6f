"""What any source of jobs becomes: commands judged, specs counted, names kept. Reads no format.

Files of commands, YAML job files and sweeps differ in how they are read; what a command may contain, which
occurrence of its like a job is and whose a name is, is the same for all of them and stands here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpusched.common.text import clean
from gpusched.core.model import NO_ATTRIBUTES, Attributes, JobSpec
from gpusched.lists.command_parts import NOTABLE
from gpusched.lists.findings import Finding
from gpusched.lists.lint import MAY_CHOOSE, Fault, apply_edits, check
from gpusched.lists.shell_lexer import Scan

BLANK = b" \t"


@dataclass(frozen=True, slots=True)
class JobFile:
    """What a source of jobs, or a piece of one, says. `complete`: it ends with a newline."""

    specs: tuple[JobSpec, ...] = ()
    findings: tuple[Finding, ...] = ()
    complete: bool = True

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")


# ---- one command -----------------------------------------------------------------------------------

# Most lines need no closer look. Left to right, as the shell reads: what simple quotes, simple expansions and
# redirections hide is put out of sight; if only plain characters remain, the line is one simple command. Any
# other character survives and sends the line to the scanner, and so does what may set up or choose a GPU.
_HIDDEN = re.compile(
    rb"""'[^'\0]*'|"[^"\\`$\0]*(?:\$(?:\w|\{\w+\})[^"\\`$\0]*)*"|\$(?:\w+|\{\w+(?:[%#:-]+[\w,.*/]*)?\})"""
    rb"""|(?<=[ \t])(?:\d?>&\d(?=[ \t]|$)|(?:\d?>>?|&>>?|<)[ \t]*(?=[\w./~'"$]))"""
)
_PLAIN = re.compile(
    rb"(?:[A-Za-z_]\w*=[\w./~+:=,@%^-]*[ \t]+)*((?:[A-Za-z_/~]|\.\.?/)[\w./~+-]*)(?:[ \t][\w./~+:=,@%^*? \t-]*)?"
)
_NOTHING = re.compile(rb":(?:[ \t]*(?:;|&&)[ \t]*:?)*")  # what is left where all was removed
_SETUP_LINE = (
    "the line only sets something up, and each line is run by itself: it does nothing for the lines below",
    "put it before each command with &&, or into a file for --setup FILE; --force passes over such lines",
)
_IN_SCRIPTS = frozenset(
    {"open-quote", "own-devices", "cleared-environment", "ordinal", "container-variable", "cpu-job"}
)


class CheckedCommand(NamedTuple):
    """A command as the shell gets it, and what is wrong with it. `setup`, `no_program`: see lint.Verdict."""

    command: bytes
    faults: list[Fault]
    setup: bool = False
    no_program: bytes = b""


def is_plain(text: bytes) -> bool:
    """Is this text, without blanks around it, so simple a command that there is nothing to judge?"""
    plain = _PLAIN.fullmatch(text) or _PLAIN.fullmatch(_HIDDEN.sub(b"^", text))
    return plain is not None and plain[1] not in NOTABLE and not MAY_CHOOSE.search(text)


def judge(scan: Scan, *, gpus: int, strip: bool) -> CheckedCommand:
    """Judge a whole command that is not empty; its faults by their place. `strip` removes its own choice of GPUs."""
    verdict = check(scan, gpus=gpus)
    faults = verdict.faults
    command = stripped(scan.text)
    if strip and verdict.edits:
        command = stripped(apply_edits(verdict.edits, scan.text))
        for code in ("own-devices", "cpu-job"):
            if code in faults:
                message = faults[code].message.split(",")[0] + ": removed by --strip-gpu-env"
                faults[code] = faults[code]._replace(severity="hint", message=message, hint="")
    if verdict.setup and not (strip and _NOTHING.fullmatch(command)):
        at = len(scan.text) - len(scan.text.lstrip(BLANK))
        verdict.add("setup-line", "error", at, *_SETUP_LINE)
    return CheckedCommand(
        command, sorted(faults.values(), key=lambda fault: fault.at), verdict.setup, verdict.no_program
    )


def judge_text(text: bytes, *, gpus: int, strip: bool) -> CheckedCommand:
    """Judge a command that is no line of a file: it may be empty, or a script of several lines."""
    if b"\0" in text:
        message = "a NUL byte: no command can contain one"
        return CheckedCommand(text, [Fault("nul-byte", "error", text.index(0), message, "", forceable=False)])
    if b"\n" in text.strip():
        return _judge_script(text, gpus, strip)
    bare = text.strip(BLANK)
    if is_plain(bare):
        return CheckedCommand(bare, [])
    scan = Scan(text)
    if scan.dangling:
        scan.extend(b"")
    if not scan.tokens and not scan.open:
        return CheckedCommand(bare, [Fault("no-command", "error", 0, "there is no command in it", "", forceable=False)])
    judged = judge(scan, gpus=gpus, strip=strip)
    if judged.no_program:
        word = clean(judged.no_program[:40].decode("utf-8", "replace"))
        judged.faults.append(Fault("no-program", "error", 0, f"the command does not start with a program ({word})"))
    return judged


def _judge_script(text: bytes, gpus: int, strip: bool) -> CheckedCommand:
    """Look in each command of a script for a choice of GPUs; what they mean together only a shell can say."""
    parts: list[bytes] = []
    faults: list[Fault] = []
    at = 0
    for part in _commands(text):
        scan = Scan(part)
        kept = part
        if MAY_CHOOSE.search(part) or scan.open:
            judged = judge(scan, gpus=gpus, strip=strip)
            if not (scan.open and b"<<" in text):  # an apostrophe in a here-document opens nothing
                faults += (fault._replace(at=at + fault.at) for fault in judged.faults if fault.code in _IN_SCRIPTS)
            kept = part if judged.command == stripped(part) else judged.command
        parts.append(kept)
        at += len(part) + 1
    return CheckedCommand(b"\n".join(parts), faults)


def _commands(text: bytes) -> Iterator[bytes]:
    """The lines of a script, joined where a quote or a backslash joins them."""
    part = b""
    for line in text.split(b"\n"):
        part += line
        scan = Scan(part)
        if scan.open or scan.dangling:
            part += b"\n"
        else:
            yield part
            part = b""
    if part:
        yield part[:-1]


def stripped(text: bytes) -> bytes:
    """Without the blanks around it, save one that a backslash makes a part of the last word."""
    bare = text.strip(BLANK)
    if (len(bare) - len(bare.rstrip(b"\\"))) % 2:
        end = text.rindex(bare) + len(bare)
        return bare + text[end : end + 1]
    return bare


# ---- all of them -----------------------------------------------------------------------------------


class Register:
    """The jobs of a source so far: which occurrence of its like each is, and whose each name is."""

    def __init__(self) -> None:
        self._seen: dict[object, tuple[int, int]] = {}  # identity -> occurrences, first line
        self._names: dict[str, int] = {}  # name -> line

    def __bool__(self) -> bool:
        return bool(self._seen)

    def admit(
        self, text: bytes, command: bytes, line: int, attributes: Attributes = NO_ATTRIBUTES
    ) -> tuple[JobSpec, int]:
        """The next job, and the line of the first one like it, or 0."""
        key: object = text
        if attributes.env or attributes.cwd is not None:
            key = text, attributes.cwd, frozenset(attributes.env)
        seen, first = self._seen.get(key, (0, line))
        self._seen[key] = seen + 1, first
        return JobSpec(command, text, line, seen + 1, attributes), first if seen else 0

    def take_name(self, name: str, line: int) -> int:
        """The line that has this name already, or 0: it is this one's now."""
        owner = self._names.get(name, 0)
        if not owner:
            self._names[name] = line
        return owner
