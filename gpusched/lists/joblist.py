"""Judge commands, for every source of jobs. Reads no format."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpusched.core.jobs.job import JobSpec
from gpusched.lists.command_parts import NOTABLE
from gpusched.lists.finding_table import fault
from gpusched.lists.findings import Finding
from gpusched.lists.shell_syntax import continues

BLANK = b" \t"


class JobFile(NamedTuple):
    """The jobs and findings of a source, or of a piece of one. `complete`: it ends with a newline."""

    specs: tuple[JobSpec, ...] = ()
    findings: tuple[Finding, ...] = ()
    complete: bool = True

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")


# Most lines are one simple command and need no parser. From left to right, as the shell reads, simple quotes,
# expansions and redirections are replaced; if only plain characters remain, the line is one simple command. A line
# with other characters goes to the parser, and so does one that may set up something, choose a GPU, or quote a dash.
_HIDDEN = (  # compiled at first need
    rb"""(?!['"]\xe2[\x80\x88])(?:'[^'\0]*'|"[^"\\`$\0]*(?:\$(?:\w|\{\w+\})[^"\\`$\0]*)*")"""
    rb"""|\$(?:\w+|\{\w+(?:[%#:-]+[\w,.*/]*)?\})"""
    rb"""|(?<=[ \t])(?:\d?>&\d(?=[ \t]|$)|(?:\d?>>?|&>>?|<)[ \t]*(?=[\w./~'"$]))"""
)
_PLAIN = re.compile(
    rb"(?:[A-Za-z_]\w*=[\w./~+:=,@%^-]*[ \t]+)*((?:[A-Za-z_/~]|\.\.?/)[\w./~+-]*)(?:[ \t][\w./~+:=,@%^*? \t-]*)?"
)
_MAY_CHOOSE = re.compile(rb"(?<![$\w{])CUDA_")  # every choice of GPUs contains this
_NOTHING = rb":(?:[ \t]*(?:;|&&)[ \t]*:?)*"  # the rest of a command after all of it was removed
_IN_SCRIPTS = frozenset(
    {"open-quote", "unfinished", "own-devices", "cleared-environment", "cpu-job", "stripped", "look-alike"}
)


class CheckedCommand(NamedTuple):
    """A command as the shell gets it, and its faults. `setup`: it only sets something up."""

    command: bytes
    faults: list[Finding]
    setup: bool = False


def is_plain(text: bytes) -> bool:
    """Return True if this text, without blanks around it, is so simple a command that it needs no check."""
    plain = _PLAIN.fullmatch(text) or _PLAIN.fullmatch(re.sub(_HIDDEN, b"^", text))
    return plain is not None and plain[1] not in NOTABLE and not _MAY_CHOOSE.search(text)


def judge(text: bytes, *, gpus: int, strip: bool) -> CheckedCommand:
    """Judge a command; its faults by offset. `strip` removes its own choice of GPUs.

    In a script of several lines a `cd` or an `export` is not lost.
    """
    if b"\0" in text:
        return CheckedCommand(text, [fault("nul-byte", text.index(0))])
    bare = text.strip(BLANK)
    if is_plain(bare):
        return CheckedCommand(bare, [])
    if continues(text):
        text = text[:-1]
    if is_empty(text):
        return CheckedCommand(bare, [fault("no-command")])
    from gpusched.lists.lint import apply_edits, check  # no plain command needs it

    result = check(text, gpus=gpus)
    faults = result.faults
    command = stripped(text)
    if strip and result.edits:
        command = stripped(apply_edits(result.edits, text))
        removed = [faults.pop(code).at for code in ("own-devices", "cleared-environment", "cpu-job") if code in faults]
        if removed:
            result.add("stripped", min(removed))
    if result.setup and not (strip and re.fullmatch(_NOTHING, command)):
        result.add("setup-line", len(text) - len(text.lstrip(BLANK)))
    is_script = b"\n" in text.strip()
    shown = [each for each in faults.values() if not is_script or each.code in _IN_SCRIPTS]
    return CheckedCommand(command, sorted(shown, key=lambda each: each.at), result.setup and not is_script)


def is_empty(text: bytes) -> bool:
    """Return True if this line is blank or a comment."""
    return text.lstrip()[:1] in (b"", b"#") and b"\n" not in text.strip()


def stripped(text: bytes) -> bytes:
    """Remove the blanks around a command, except one that a backslash makes a part of the last word."""
    bare = text.strip(BLANK)
    if (len(bare) - len(bare.rstrip(b"\\"))) % 2:
        end = text.rindex(bare) + len(bare)
        return bare + text[end : end + 1]
    return bare
