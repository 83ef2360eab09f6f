"""The bytes of a file of commands -> job specs and findings. Opens no file and runs nothing.

One shell command a line, kept byte for byte; a backslash at the end of a line joins the next one as the shell
does. A line may begin with attributes, `[gpus=2] command`; `#gpusched: gpus=2` sets defaults for the lines below.
Identity is the text of the command without its attributes, and which occurrence of it. What a single line may
contain is judged by `lint`, what the shell makes of it by `shellwords`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gpusched.common.text import clean
from gpusched.core.model import NO_ATTRIBUTES, Attributes, JobSpec
from gpusched.lists.attributes import make, state
from gpusched.lists.blocks import DIRECTIVE, Block, looks_like_directive, opens_block, read_block, read_directive
from gpusched.lists.findings import Finding
from gpusched.lists.joblist import BLANK, JobFile, Register, is_plain, judge, stripped
from gpusched.lists.lint import Fault
from gpusched.lists.shell_lexer import Scan

__all__ = ["SCRIPT_BYTES", "JobFile", "LineFeed", "needs_script", "parse"]

# The kernel takes no argument of 128 KiB or more (MAX_ARG_STRLEN, with its final NUL); 4 KiB of that are left
# for what is put before a command.
SCRIPT_BYTES = 128 * 1024 - 4096

_BOM = b"\xef\xbb\xbf"
_NOT_A_SHELL = re.compile(rb"#!.*\b(python|perl|ruby|node|Rscript|julia|awk|make|php|lua)")


def parse(data: bytes, *, force: bool = False, strip_gpu_env: bool = False, gpus: int = 1) -> JobFile:
    """Read a whole file.

    `force` turns forceable errors into warnings; lines that only set something up are then passed over.
    `strip_gpu_env` takes a line's own choice of GPUs out of `command`, never out of `text`. `gpus` is what
    a job gets that does not say. A line with an error makes no job.
    """
    feed = LineFeed(force=force, strip_gpu_env=strip_gpu_env, gpus=gpus)
    body, rest = feed.feed(data), feed.finish()
    return JobFile(body.specs + rest.specs, body.findings + rest.findings, body.complete)


def needs_script(command: bytes) -> bool:
    """Is this command too long for `bash -c`, so that it has to be run from a file?"""
    return len(command) >= SCRIPT_BYTES


class LineFeed:
    """The same for a file that arrives in pieces: each call returns what has become certain by it."""

    def __init__(self, *, force: bool = False, strip_gpu_env: bool = False, gpus: int = 1) -> None:
        self._force = force
        self._strip = strip_gpu_env
        self._gpus = gpus
        self._tail = bytearray()  # a line that has no end yet
        self._number = 0  # of the last line read
        self._joined: list[tuple[int, int, bytes]] = []  # physical lines joined so far: offset, number, bytes
        self._scan: Scan | None = None  # of the command that goes on in the next line
        self._block: Block | None = None  # that stood before the command that is being read
        self._stated: dict[str, Any] = {}  # by the directives so far
        self._defaults = NO_ATTRIBUTES  # the same, made
        self._jobs = Register()
        self._table: list[str] = []  # first words of the lines that could be a table, up to the last line
        self._table_at = -1  # where its finding stands among those not taken yet
        self._specs: list[JobSpec] = []
        self._findings: list[Finding] = []

    def feed(self, data: bytes) -> JobFile:
        """Take the next bytes; a line counts when its newline is there."""
        body, newline, rest = data.rpartition(b"\n")
        if newline:
            for line in (bytes(self._tail) + body).split(b"\n"):
                self._line(line)
            self._tail.clear()
        self._tail += rest
        return self._taken()

    def finish(self) -> JobFile:
        """The input ended: what is left is the last line."""
        complete = not self._tail
        if self._tail:
            self._line(bytes(self._tail))
            self._tail.clear()
        if self._scan is not None:
            self._dangling(self._scan, complete)
        return replace(self._taken(), complete=complete)

    def _taken(self) -> JobFile:
        taken = JobFile(tuple(self._specs), tuple(self._findings), not self._tail)
        self._specs, self._findings, self._table_at = [], [], -1
        return taken

    # ---- lines ----

    def _line(self, line: bytes) -> None:
        self._number += 1
        line = line.rstrip(b"\r")
        if self._number == 1:
            line = line.removeprefix(_BOM)
        if self._scan is not None:
            self._joined.append((len(self._scan.text) - 1, self._number, line))
            self._scan.extend(line)
            self._scanned(self._scan)
            return
        text = line.strip(BLANK)
        first = text[:1]
        if not first:
            return
        if first == b"#":
            self._comment(line, text)
        elif first == b"[" and opens_block(text):
            self._attributed(line)
        elif is_plain(text):
            self._table.clear()
            self._add(text, text, self._number, self._defaults)
        else:
            self._joined = [(0, self._number, line)]
            self._scanned(Scan(line))

    def _comment(self, line: bytes, text: bytes) -> None:
        if text.startswith(DIRECTIVE):
            self._joined = [(0, self._number, line)]
            block = read_directive(line, line.index(DIRECTIVE))
            faults = state(block.words, self._stated, directive=True)
            self._report_all([*faults, block.fault] if block.fault else faults)
            self._defaults = make(self._stated)
        elif text[1:2] == b"!" and self._number == 1:
            self._shebang(line)
        elif looks_like_directive(text):
            self._joined = [(0, self._number, line)]
            at = len(line) - len(line.lstrip(BLANK))
            self._report(Fault("near-directive", "warning", at, "this is a comment and sets nothing", _DIRECTIVE_IS))

    def _attributed(self, line: bytes) -> None:
        """A line that begins with a block. A block that does not close on it may go on in the next one."""
        self._joined = [(0, self._number, line)]
        block = read_block(line, line.index(b"["))
        if block.end >= 0:
            rest = line[block.end :]
            text = rest.strip(BLANK)
            if rest[:1] in (b" ", b"\t") and is_plain(text):
                attributes = self._attributes(block)
                if attributes is not None:
                    self._table.clear()
                    self._add(text, text, self._number, attributes)
                return
            self._block = block
            line = self._behind(line, block.end)
        self._scanned(Scan(line))

    def _scanned(self, scan: Scan) -> None:
        self._scan = scan if scan.dangling else None
        if not scan.dangling:
            self._command(scan)

    def _dangling(self, scan: Scan, complete: bool) -> None:
        """The input ended in a backslash. With a newline after it the shell joins nothing and goes on."""
        message, hint = "the last line ends in a backslash, and nothing follows it", "take the backslash away"
        at = len(scan.text) - 1
        if complete:
            self._report(Fault("backslash-at-end", "warning", at, message, hint))
            self._scan = None
            scan.extend(b"")
            self._command(scan)
        else:
            hint = "is the file whole? If it is, take the backslash away"
            self._report(Fault("backslash-at-end", "error", at, message, hint, forceable=False))

    def _shebang(self, line: bytes) -> None:
        self._joined = [(0, self._number, line)]
        script = _NOT_A_SHELL.match(line.strip(BLANK))
        if script:
            language = script[1].decode()
            message = f"this is a {language} script, not a file of commands"
            self._report(Fault("script", "error", 0, message, f"write a file with lines like: {language} FILE"))
        else:
            message = "this line chooses no shell: each line below is run by itself"
            self._report(Fault("shebang", "hint", 0, message, "--shell chooses one"))

    # ---- commands ----

    def _command(self, scan: Scan) -> None:
        """A whole command: report what is wrong in it, and make a job of it unless that forbids it."""
        attributes: Attributes | None = self._defaults
        block, self._block = self._block, None
        if block is None and scan.text[:1] in b"[ \t" and opens_block(scan.text.lstrip(BLANK)):
            block = read_block(scan.text, scan.text.index(b"["))  # it went on over several lines
            if block.end >= 0:
                scan = Scan(self._behind(scan.text, block.end))
        if block is not None:
            attributes = self._attributes(block)
            if block.end >= 0 and not scan.tokens and scan.text:
                hint = f"for all lines below: {DIRECTIVE.decode()} key=value"
                message = "no command follows the attributes"
                self._report(Fault("attribute-alone", "error", block.end - 1, message, hint, False))
            if not scan.tokens or block.end < 0:
                return
        text = stripped(scan.text)
        if not text:
            return
        if b"\0" in text:
            message = "a NUL byte: no command can contain one"
            hint = "save the file as UTF-8 text"
            self._report(Fault("nul-byte", "error", scan.text.index(0), message, hint, forceable=False))
            return
        gpus = self._gpus if attributes is None or attributes.gpus is None else attributes.gpus
        judged = judge(scan, gpus=gpus, strip=self._strip)
        refused = self._report_all(judged.faults)
        if judged.no_program:
            at = len(scan.text) - len(scan.text.lstrip(BLANK))
            refused |= self._table_line(judged.no_program, at)
        else:
            self._table.clear()
        if not (refused or judged.setup or attributes is None):
            self._add(text, judged.command, self._joined[0][1], attributes)

    def _attributes(self, block: Block) -> Attributes | None:
        """What a block says, with the defaults; None where that forbids the job."""
        stated = self._stated.copy()
        faults = state(block.words, stated)
        if block.fault is not None:
            faults.append(block.fault)
        attributes = make(stated)
        if attributes.name and (owner := self._jobs.take_name(attributes.name, self._joined[0][1])):
            at = next(word.at for word in block.words if word.key == "name")
            message = f"the name {attributes.name} is that of line {owner} already"
            faults.append(
                Fault("name-taken", "error", at, message, "each name is for one job; tag=… is for many", False)
            )
        return None if faults and self._report_all(faults) else attributes

    def _behind(self, text: bytes, end: int) -> bytes:
        """The text with blanks in the place of its block, so that every offset stays; empty where that is wrong."""
        rest = text[end:]
        command = rest.lstrip(BLANK)
        if command and command == rest:
            self._report(Fault("attribute-end", "error", end, "a blank must follow the attributes", "", False))
        elif opens_block(command):
            message = "a second block of attributes: put all into the first"
            self._report(Fault("attribute-end", "error", len(text) - len(command), message, "", False))
        else:
            return b" " * end + rest
        return b""

    def _table_line(self, word: bytes, at: int) -> bool:
        """A line that starts with no program: one finding for all that follow each other."""
        self._table.append(clean(word[:40].decode("utf-8", "replace")))
        if len(self._table) == 1:
            self._table_at = len(self._findings)
            message = f"the line does not start with a program ({self._table[0]}); {_TABLE[0]}"
            self._report(Fault("parameter-table", "error", at, message, _TABLE[1]))
        elif len(self._table) in (2, 3) and self._table_at >= 0:
            which = "these lines" if self._jobs else "the first lines"
            words = ", ".join(self._table[:2]) + " …" * (len(self._table) > 2)
            message = f"none of {which} starts with a program ({words}); {_TABLE[0]}"
            self._findings[self._table_at] = replace(self._findings[self._table_at], message=message)
        return not self._force

    def _add(self, text: bytes, command: bytes, line: int, attributes: Attributes) -> None:
        spec, first = self._jobs.admit(text, command, line, attributes)
        self._specs.append(spec)
        if first:
            self._findings.append(Finding("hint", "duplicate", line, f"line {line} repeats line {first}"))

    def _report_all(self, faults: Iterable[Fault]) -> bool:
        severities = [self._report(fault) for fault in faults]
        return any(severities)

    def _report(self, fault: Fault) -> bool:
        """Make a finding of it, placed in its physical line; say whether it refuses the line."""
        severity = fault.severity
        if severity == "error" and self._force and fault.forceable:
            severity = "warning"
        start, number, line = next(piece for piece in reversed(self._joined) if piece[0] <= fault.at)
        at = min(fault.at - start, len(line))
        forceable = fault.forceable and fault.severity == "error"
        self._findings.append(Finding(severity, fault.code, number, fault.message, fault.hint, forceable, line, at))
        return severity == "error"


_DIRECTIVE_IS = f"a directive begins with {DIRECTIVE.decode()} and nothing else: {DIRECTIVE.decode()} gpus=2 mem=18G"
_TABLE = (
    "is this a table of parameters?",
    "begin each line with the program that takes them; --force runs the lines as they are",
)
