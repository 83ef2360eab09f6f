"""The bytes of a file of commands -> job specs and findings. Opens no file and runs nothing.

One shell command a line, kept byte for byte; a backslash at the end of a line joins the next one as the shell
does. Identity is the text of the command and which occurrence of it. What a single line may contain is
judged by `lint`, what the shell makes of it by `shellwords`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpusched.core.anatomy import NOTABLE
from gpusched.core.findings import Finding
from gpusched.core.lint import MAY_CHOOSE, Fault, apply_edits, check
from gpusched.core.masking import clean
from gpusched.core.model import JobSpec
from gpusched.core.shellwords import Scan

# The kernel takes no argument of 128 KiB or more (MAX_ARG_STRLEN, with its final NUL); 4 KiB of that are left
# for what is put before a command.
SCRIPT_BYTES = 128 * 1024 - 4096

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t"

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
_NOT_A_SHELL = re.compile(rb"#!.*\b(python|perl|ruby|node|Rscript|julia|awk|make|php|lua)")


@dataclass(frozen=True, slots=True)
class JobFile:
    """What a file, or a piece of one, says. `complete`: it ends with a newline."""

    specs: tuple[JobSpec, ...] = ()
    findings: tuple[Finding, ...] = ()
    complete: bool = True

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")


def parse(data: bytes, *, force: bool = False, strip_gpu_env: bool = False, gpus: int = 1) -> JobFile:
    """Read a whole file.

    `force` turns forceable errors into warnings; lines that only set something up are then passed over.
    `strip_gpu_env` takes a line's own choice of GPUs out of `command`, never out of `text`. `gpus` is what
    each job gets. A line with an error makes no job.
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
        self._seen: dict[bytes, tuple[int, int]] = {}  # text -> occurrences, first line
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
        text = line.strip(_BLANK)
        if not text:
            return
        if text[:1] == b"#":
            if text[1:2] == b"!" and self._number == 1:
                self._shebang(line)
            return
        plain = _PLAIN.fullmatch(text) or _PLAIN.fullmatch(_HIDDEN.sub(b"^", text))
        if plain and plain[1] not in NOTABLE and not MAY_CHOOSE.search(text):
            self._table.clear()
            self._add(text, text, self._number)
            return
        self._joined = [(0, self._number, line)]
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
        script = _NOT_A_SHELL.match(line.strip(_BLANK))
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
        text = _strip(scan.text)
        if not text:
            return
        if b"\0" in text:
            message = "a NUL byte: no command can contain one"
            hint = "save the file as UTF-8 text"
            self._report(Fault("nul-byte", "error", scan.text.index(0), message, hint, forceable=False))
            return
        verdict = check(scan, gpus=self._gpus)
        faults = verdict.faults
        command = text
        if self._strip and verdict.edits:
            command = _strip(apply_edits(verdict.edits, scan.text))
            for code in ("own-devices", "cpu-job"):
                if code in faults:
                    message = faults[code].message.split(",")[0] + ": removed by --strip-gpu-env"
                    faults[code] = faults[code]._replace(severity="hint", message=message, hint="")
        at = len(scan.text) - len(scan.text.lstrip(_BLANK))
        if verdict.setup and not (self._strip and _NOTHING.fullmatch(command)):
            verdict.add("setup-line", "error", at, *_SETUP_LINE)
        refused = [self._report(fault) for fault in sorted(faults.values(), key=lambda fault: fault.at)]
        if verdict.no_program:
            refused.append(self._table_line(verdict.no_program, at))
        else:
            self._table.clear()
        if any(refused) or verdict.setup:
            return
        self._add(text, command, self._joined[0][1])

    def _table_line(self, word: bytes, at: int) -> bool:
        """A line that starts with no program: one finding for all that follow each other."""
        self._table.append(clean(word[:40].decode("utf-8", "replace")))
        if len(self._table) == 1:
            self._table_at = len(self._findings)
            message = f"the line does not start with a program ({self._table[0]}); {_TABLE[0]}"
            self._report(Fault("parameter-table", "error", at, message, _TABLE[1]))
        elif len(self._table) in (2, 3) and self._table_at >= 0:
            which = "these lines" if self._seen else "the first lines"
            words = ", ".join(self._table[:2]) + " …" * (len(self._table) > 2)
            message = f"none of {which} starts with a program ({words}); {_TABLE[0]}"
            self._findings[self._table_at] = replace(self._findings[self._table_at], message=message)
        return not self._force

    def _add(self, text: bytes, command: bytes, line: int) -> None:
        seen, first = self._seen.get(text, (0, line))
        self._seen[text] = seen + 1, first
        self._specs.append(JobSpec(command, text, line, seen + 1))
        if seen:
            self._findings.append(Finding("hint", "duplicate", line, f"line {line} repeats line {first}"))

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


_SETUP_LINE = (
    "the line only sets something up, and each line is run by itself: it does nothing for the lines below",
    "put it before each command with &&, or into a file for --setup FILE; --force passes over such lines",
)
_TABLE = (
    "is this a table of parameters?",
    "begin each line with the program that takes them; --force runs the lines as they are",
)
_NOTHING = re.compile(rb":(?:[ \t]*(?:;|&&)[ \t]*:?)*")  # what is left where all was removed


def _strip(text: bytes) -> bytes:
    """Without the blanks around it, save one that a backslash makes a part of the last word."""
    stripped = text.strip(_BLANK)
    bare = stripped.rstrip(b"\\")
    if (len(stripped) - len(bare)) % 2:
        end = text.rindex(stripped) + len(stripped)
        return stripped + text[end : end + 1]
    return stripped
