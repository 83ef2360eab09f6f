"""Judge one command line: what cannot be right in it, or is hardly meant. Changes nothing, reads no files.

It knows bash. What rests on that is forceable: a gap in our knowledge of another shell costs an option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from gpusched.lists.command_parts import MASKS, Command, CommandParts, structure
from gpusched.lists.findings import Severity
from gpusched.lists.shell_lexer import Scan, Token, literal


class Fault(NamedTuple):
    """One thing found; `at` is an offset into the text of the scan."""

    code: str
    severity: Severity
    at: int
    message: str
    hint: str = ""
    forceable: bool = True


class Edit(NamedTuple):
    """Put `text` in the place of the bytes from `start` to `end`."""

    start: int
    end: int
    text: bytes = b""


@dataclass(slots=True)
class LintResult:
    """All about one line. `setup`: it only sets something up; `no_program`: a first word that can be none."""

    faults: dict[str, Fault] = field(default_factory=dict)  # the first of each code
    edits: list[Edit] = field(default_factory=list)  # what removes its own choice of GPU
    setup: bool = False
    no_program: bytes = b""

    def add(
        self, code: str, severity: Severity, at: int, message: str, hint: str = "", *, forceable: bool = True
    ) -> None:
        self.faults.setdefault(code, Fault(code, severity, at, message, hint, forceable))


def apply_edits(edits: list[Edit], text: bytes) -> bytes:
    """The text with the edits made, and every other byte as it was."""
    parts: list[bytes] = []
    at = 0
    for edit in sorted(edits):
        parts += (text[at : max(at, edit.start)], edit.text)
        at = max(at, edit.end)
    return b"".join(parts) + text[at:]


_ONE_LINE = "a command has one line: join lines by a backslash at the end, or put them into a script"
_OPENED = {b"'": "single quote", b"$'": "single quote", b'"': "double quote", b"`": "backquote"}
_OPENED |= {b"(": "parenthesis", b"${": "brace", b'"${': "brace"}
_ESCAPED_BLANK = re.compile(rb"(?<!\\)(?:\\\\)*\\[ \t]$")
_NUMBER = re.compile(rb"[+-]?(?:\d[\d_.,:;/%-]*(?:[eE][+-]?\d+)?|\.\d+)")

_GPU_SETTING = re.compile(rb"((?:CUDA|NVIDIA)_VISIBLE_DEVICES|CUDA_DEVICE_ORDER)\+?=(.*)", re.DOTALL)
_NO_GPU = re.compile(rb"-1|none|NoDevFiles|void|", re.IGNORECASE)
_ORDINAL_OPTION = re.compile(
    rb"--?(gpus|devices|gpu(?:[-_]?(?:ids?|idx|index|indices))?|device(?:[-_]?(?:ids?|idx|index))?"
    rb"|cuda[-_](?:device|id)|main[-_]gpu)(?:=(.*))?",
    re.DOTALL,
)
_ORDINALS = re.compile(rb"(?:cuda:|gpu:)?(\d{1,4}(?:,\d{1,4})*)")
_CUDA_ORDINAL = re.compile(rb"(?:[\w.+-]+=)?cuda:(\d{1,4})")

# What every choice of GPUs holds; without it a line needs no look for one.
MAY_CHOOSE = re.compile(
    rb"""(?<![$\w{])(?:CUDA|NVIDIA)_|(?:gpu|device|cuda)[\w-]*(?:[ \t]+|=)['"]?(?:cuda:|gpu:)?\d"""
    rb"""|cuda:\d|\benv\b""",
    re.IGNORECASE,
)

_NEUTRAL = frozenset({b"[", b"[[", b"test", b":", b"true"})
_WAITERS = frozenset({b"wait", b"fg", b"kill", b"pkill", b"killall"})


def check(scan: Scan, *, gpus: int = 1) -> LintResult:
    """Judge a finished scan of a line whose job gets `gpus` GPUs."""
    verdict = LintResult()
    if scan.open:
        opener, at = scan.open[0]
        message = f"this {_OPENED[opener]} is not closed on its line"
        verdict.add("open-quote", "error", at, message, _ONE_LINE, forceable=False)
        return verdict
    tokens = scan.tokens
    if scan.comment >= 0 and scan.text.endswith(b"\\"):
        message = "a backslash in a comment joins nothing: the next line is a command of its own"
        hint = "move the comment to a line above the command"
        verdict.add("backslash-in-comment", "warning", len(scan.text) - 1, message, hint)
    elif tokens and tokens[-1].is_word and _ESCAPED_BLANK.search(tokens[-1].text):
        message = "a blank follows the backslash, so the shell does not join the next line"
        hint = "take the blank away; --force runs the lines as the shell would, each for itself"
        verdict.add("backslash-blank", "error", tokens[-1].end - 2, message, hint)
    if tokens and tokens[0].is_word:
        _check_first_word(tokens[0], verdict)
    _check_commands(scan, 0, gpus, verdict)
    return verdict


def _check_first_word(token: Token, verdict: LintResult) -> None:
    word = literal(token.text)
    table = b"," in word and not any(mark in token.text for mark in (b"/", b"$", b"{", b"=", b"`"))
    if table or _NUMBER.fullmatch(word) or token.text[:2] in (b'{"', b'["', b"[{"):
        verdict.no_program = token.text
    elif word.startswith(b"-"):
        message = "the line begins with an option, not with a program"
        hint = "if it goes on from the line above, that one must end in a backslash"
        verdict.add("option-line", "error", token.start, message, hint)


def _check_commands(scan: Scan, base: int, gpus: int, verdict: LintResult) -> None:
    """Judge the commands of a line, or of the text at `base` in it that it gives to a shell."""
    commands, unfinished, heredoc = structure(scan)
    if heredoc is not None:
        message = "a here-document needs lines of its own, and a command has one line"
        hint = "give the text by a file or by a here-string: <<< 'text'"
        verdict.add("here-document", "error", base + heredoc.start, message, hint, forceable=False)
    if unfinished is not None:
        message = f"the command is not whole: its {unfinished.text.decode()} has no counterpart on this line"
        verdict.add("unfinished", "error", base + unfinished.start, message, _ONE_LINE)
    may_choose = MAY_CHOOSE.search(scan.text)
    left: dict[int, int] = {}  # by shell: where it left something in the background
    setup = real = trapped = False
    for command in commands:
        parts = CommandParts(command)
        if may_choose:
            _check_devices(command, parts, scan.text, base, gpus, verdict)
        if may_choose and gpus:
            _check_ordinals(command, base, gpus, verdict)
        if command.ender is not None and command.ender.text == b"&":
            left[command.shell] = base + command.ender.start
        elif parts.detaches:
            left[-1] = base + command.words[0].start
        elif parts.name in _WAITERS:
            left.pop(command.shell, None)
        trapped |= parts.name == b"trap"
        setup |= parts.setup
        real |= not parts.setup and parts.name not in _NEUTRAL
        for inner, at in parts.inner:
            _check_commands(inner, base + at, gpus, verdict)
    if left and not trapped:
        message = "something is left in the background: the shell returns while it still runs"
        hint = "a job needs no nohup and no &; or end the line with wait. The GPU stays claimed until no process"
        verdict.add("background", "warning", min(left.values()), message, f"{hint} of the job is left")
    if base == 0:
        verdict.setup = setup and not real


def _check_devices(
    command: Command, parts: CommandParts, text: bytes, base: int, gpus: int, verdict: LintResult
) -> None:
    """Find what would take the job away from the GPU that is claimed for it, and how to remove that."""
    removed: list[Token] = list(parts.unset)
    own = "so the job would not use the GPU that is checked and claimed for it"
    hint = "gpusched sets it: leave it out, or --strip-gpu-env removes it; --force runs the line as it is"
    for word in parts.unset:
        verdict.add("own-devices", "error", base + word.start, f"it unsets what gpusched sets, {own}", hint)
    masked = False
    for word in parts.setters:
        setting = _GPU_SETTING.match(literal(word.text))
        if setting is None:
            continue
        name, value = setting[1], setting[2]
        at, shown = base + word.start, name.decode()
        masked |= name == MASKS[0]
        if any(mark in value for mark in (b"CUDA_VISIBLE_DEVICES", b"GPUSCHED_")) or value == b"PCI_BUS_ID":
            continue  # made of what the job is given
        if name not in MASKS:
            message = f"{shown} chooses no GPU here: only a container's start reads it"
            verdict.add("container-variable", "hint", at, message, "each job sees its own GPUs and no others")
            continue
        if name == MASKS[0] and _NO_GPU.fullmatch(value):
            if gpus:
                message = f"{shown} is empty, so the job uses no GPU while one is claimed for it: a CPU job?"
                advice = "begin the line with [gpus=0], or run a list of such lines with --gpus-per-job 0"
                verdict.add("cpu-job", "warning", at, message, advice)
        else:
            verdict.add("own-devices", "error", at, f"it sets {shown} itself, {own}", hint)
        removed.append(word)
    if parts.cleared is not None and not masked:
        keep = "keep it by: env -i CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER=PCI_BUS_ID …"
        message = f"it empties the environment, {own}"
        verdict.add("cleared-environment", "error", base + parts.cleared.start, message, keep)
    verdict.edits += (Edit(base + e.start, base + e.end, e.text) for e in _removal(command, parts, removed, text))


def _removal(command: Command, parts: CommandParts, removed: list[Token], text: bytes) -> list[Edit]:
    """Take words out of a command. Where nothing would be left of it, `:` stays in its place."""
    if not removed:
        return []
    gone = {*removed, parts.declarer}
    kept = [word for word in command.words if word not in gone]
    edits = []
    if parts.declarer is not None and all(word.text.startswith(b"-") for word in kept):
        edits.append(Edit(parts.declarer.start, parts.declarer.end, b":"))
    elif not kept and parts.declarer is None:
        edits.append(Edit(removed[0].start, removed[0].end, b":"))
        removed = removed[1:]
    first = kept[0].start if kept and parts.declarer is None else 0
    for word in removed:
        start, end = word.start, word.end
        if start < first:  # nothing is left before it: take the blanks that follow
            end += len(text[end:]) - len(text[end:].lstrip(b" \t"))
        else:
            start = len(text[:start].rstrip(b" \t"))
        edits.append(Edit(start, end))
    return edits


def _check_ordinals(command: Command, base: int, gpus: int, verdict: LintResult) -> None:
    """Find ordinals that do not exist where only the job's own GPUs are visible."""
    following = [*command.words[1:], None]
    for word, after in zip(command.words, following, strict=False):
        text = literal(word.text)
        option = _ORDINAL_OPTION.fullmatch(text)
        if option is not None:
            value = option[2] if option[2] is not None else literal(after.text) if after else b""
            ordinals = _ORDINALS.fullmatch(value)
        else:
            ordinals = _CUDA_ORDINAL.fullmatch(text)
        if ordinals is None:
            continue
        highest = max(map(int, ordinals[1].split(b",")))
        counts = option is not None and option[1] in (b"gpus", b"devices") and ordinals[1].isdigit()
        if highest > gpus - 1 + counts:
            exist = "only ordinal 0 exists" if gpus == 1 else f"only ordinals 0 to {gpus - 1} exist"
            message = f"inside the job {exist}, whichever GPU it got; this names {highest}"
            verdict.add("ordinal", "hint", base + word.start, message, "count from 0 among the job's own GPUs")
