"""Parse the bytes of a file of commands into job specs and findings. Opens no file and runs nothing.

One shell command a line, kept byte for byte; a backslash at the end of a line joins the next one as the shell
does. A line may begin with attributes, `[gpus=2] command`; `#gpusched: gpus=2` sets defaults for the lines below.
The identity of a job is the text of the command without its attributes, and its occurrence number. `lint` judges a
single line, `shell_syntax` reads it.
"""

from __future__ import annotations

import re
from typing import Any

from gpusched.common.text_input import encoding_problem
from gpusched.core.jobs.job import NO_ATTRIBUTES
from gpusched.lists.attributes import make, state
from gpusched.lists.blocks import DIRECTIVE, looks_like_directive, read_directive
from gpusched.lists.finding_table import fault
from gpusched.lists.findings import Finding
from gpusched.lists.joblist import BLANK, JobFile, is_empty, is_plain
from gpusched.lists.maker import ListEntry, Maker, Piece, Spot
from gpusched.lists.shell_syntax import continues

__all__ = ["SCRIPT_BYTES", "JobFile", "LineFeed", "needs_script", "parse"]

# The kernel accepts no argument of 128 KiB or more (MAX_ARG_STRLEN, with its final NUL); 4 KiB of that are reserved
# for the setup that precedes a command.
SCRIPT_BYTES = 128 * 1024 - 4096

_BOM = b"\xef\xbb\xbf"
_NOT_A_SHELL = re.compile(rb"#!.*\b(python|perl|ruby|node|Rscript|julia|awk|make|php|lua)")


def parse(data: bytes, **options: Any) -> JobFile:
    """Read a whole file. The options are those of LineFeed."""
    feed = LineFeed(**options)
    body, rest = feed.feed(data), feed.finish()
    return JobFile(body.specs + rest.specs, body.findings + rest.findings, body.complete)


def needs_script(command: bytes) -> bool:
    """Return True if this command is too long for `bash -c`, and must be run from a file."""
    return len(command) >= SCRIPT_BYTES


class LineFeed(Maker):
    """A parser for a file that arrives in pieces: each call returns the jobs and findings that are complete."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._tail = bytearray()  # a line that has no end yet
        self._number = 0  # of the last line read
        self._joined: list[Piece] = []  # the physical lines of the command
        self._is_refused = False  # all of it, since it is in another encoding
        self._head: bytes | None = None  # of a command that continues in the next line
        self._directives: dict[str, Any] = {}  # keys and values of the directives so far
        self._defaults = NO_ATTRIBUTES  # the same as attributes

    def feed(self, data: bytes) -> JobFile:
        """Parse the next bytes, up to the last newline."""
        body, newline, rest = data.rpartition(b"\n")
        if newline:
            for line in (bytes(self._tail) + body).split(b"\n"):
                self._line(line)
            self._tail.clear()
        self._tail += rest
        return self.take(complete=not self._tail)

    def finish(self) -> JobFile:
        """Parse the last line, which may have no newline."""
        complete = not self._tail
        if self._tail:
            self._line(bytes(self._tail), has_end=False)
            self._tail.clear()
        if self._head is not None:
            self._dangling(self._head, complete)
        return self.take(complete=complete)

    # ---- lines ----

    def _line(self, line: bytes, *, has_end: bool = True) -> None:
        self._number += 1
        if self._number == 1 and (problem := encoding_problem(line + b"\n" * has_end)):
            self._is_refused = self.report(fault("encoding", problem=problem), Spot(1))
        if self._is_refused:
            return
        line = line.rstrip(b"\r")
        if self._number == 1:
            line = line.removeprefix(_BOM)
        if self._head is not None:
            self._joined.append((len(self._head), self._number, line, 0))
            self._join(self._head + line)
            return
        text = line.strip(BLANK)
        first = text[:1]
        if not first:
            return
        if first not in b"#[" and is_plain(text):
            self.admit(text, text, self._number, self._defaults)
            return
        self._joined = [(0, self._number, line, 0)]
        if first == b"#":
            self._comment(line, text)
        else:
            self._join(line)

    def _comment(self, line: bytes, text: bytes) -> None:
        if text.startswith(DIRECTIVE):
            block = read_directive(line, line.index(DIRECTIVE))
            self.report_all(state(block, self._directives, directive=True), self._spot(), line)
            self._defaults = make(self._directives)
        elif text[1:2] == b"!" and self._number == 1:
            script = _NOT_A_SHELL.match(text)
            self._report(fault("script", language=script[1].decode()) if script else fault("shebang"))
        elif text.startswith(b"#SBATCH"):
            self._report(fault("slurm-directive", line.index(b"#")))
        elif looks_like_directive(text):
            self._report(fault("near-directive", len(line) - len(line.lstrip(BLANK))))

    def _join(self, text: bytes) -> None:
        """Read a command, or wait for the line that its last backslash joins to it."""
        self._head = text[:-1] if continues(text) else None
        if self._head is None:
            self._command(text)

    def _dangling(self, head: bytes, complete: bool) -> None:
        """Report a backslash at the end of the file. If a newline follows it, the command before it is a job."""
        self._report(fault("backslash-at-end" if complete else "backslash-at-end.partial", len(head)))
        if complete:
            self._head = None
            self._command(head)

    # ---- commands ----

    def _command(self, text: bytes) -> None:
        if not is_empty(text):
            self.make_job(text, self._directives.copy(), ListEntry("", self._spot(), block=True))

    def _spot(self) -> Spot:
        _, number, line, _ = self._joined[0]
        return Spot(number, line, pieces=tuple(self._joined))

    def _report(self, fault: Finding) -> None:
        self.report(fault, self._spot())
