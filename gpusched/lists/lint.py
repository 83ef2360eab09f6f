"""Judge one command line: report mistakes, and doubtful parts. Changes nothing, reads no files.

The rules are those of bash. Errors that depend on them are forceable, since another shell may differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from gpusched.common.text import clean
from gpusched.lists.command_parts import Command, CommandParts, structure
from gpusched.lists.finding_table import Fault, fault
from gpusched.lists.shell_lexer import Scan, Token, literal


class Edit(NamedTuple):
    """A replacement of the bytes from `start` to `end` by `text`."""

    start: int
    end: int
    text: bytes = b""


@dataclass(slots=True)
class LintResult:
    """The judgement of one line. `setup`: it only sets something up."""

    faults: dict[str, Fault] = field(default_factory=dict)  # the first of each code
    edits: list[Edit] = field(default_factory=list)  # that remove the line's own choice of GPUs
    setup: bool = False

    def add(self, name: str, at: int, **values: str) -> None:
        """Add the fault of a row of the table, unless there is one of its code."""
        new = fault(name, at, **values)
        self.faults.setdefault(new.code, new)


def apply_edits(edits: list[Edit], text: bytes) -> bytes:
    """Return the text with the edits applied; every other byte stays."""
    parts: list[bytes] = []
    at = 0
    for edit in sorted(edits):
        parts += (text[at : max(at, edit.start)], edit.text)
        at = max(at, edit.end)
    return b"".join(parts) + text[at:]


_OPENED = {b"'": "single quote", b"$'": "single quote", b'"': "double quote", b"`": "backquote"}
_OPENED |= {b"(": "parenthesis", b"${": "brace", b'"${': "brace"}
_ESCAPED_BLANK = re.compile(rb"(?<!\\)(?:\\\\)*\\[ \t]$")
_NUMBER = re.compile(rb"[+-]?(?:\d[\d_.,:;/%-]*(?:[eE][+-]?\d+)?|\.\d+)")

_GPU_SETTING = re.compile(rb"(CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER)(?:\+?=(.*))?", re.DOTALL)
_DERIVED = re.compile(rb".*(?:CUDA_VISIBLE_DEVICES|GPUSCHED_).*|PCI_BUS_ID", re.DOTALL)  # from what the job gets
_NO_GPU = re.compile(rb"-1|none|NoDevFiles|void|", re.IGNORECASE)
# Every choice of GPUs contains one of these; a line without them needs no search for one.
MAY_CHOOSE = re.compile(rb"(?<![$\w{])CUDA_|\benv\b", re.IGNORECASE)

_NEUTRAL = frozenset({b"[", b"[[", b"test", b":", b"true", b"in"})
_WAITERS = frozenset({b"wait", b"fg", b"kill", b"pkill", b"killall"})


def check(scan: Scan, *, gpus: int = 1) -> LintResult:
    """Judge a finished scan of a line whose job gets `gpus` GPUs."""
    result = LintResult()
    if scan.open:
        opener, at = scan.open[0]
        result.add("open-quote", at, opener=_OPENED[opener])
        return result
    tokens = scan.tokens
    if scan.comment >= 0 and scan.text.endswith(b"\\"):
        result.add("backslash-in-comment", len(scan.text) - 1)
    elif tokens and tokens[-1].is_word and _ESCAPED_BLANK.search(tokens[-1].text):
        result.add("backslash-blank", tokens[-1].end - 2)
    if tokens and tokens[0].is_word:
        _check_first_word(tokens[0], result)
    _check_commands(scan, 0, gpus, result)
    return result


def _check_first_word(token: Token, result: LintResult) -> None:
    word = literal(token.text)
    is_row = b"," in word and not any(mark in token.text for mark in (b"/", b"$", b"{", b"=", b"`"))
    if is_row or _NUMBER.fullmatch(word) or token.text[:2] in (b'{"', b'["', b"[{"):
        text = clean(token.text[:40].decode("utf-8", "replace"))
        result.add("parameter-table", token.start, word=text)
    elif word.startswith(b"-"):
        result.add("option-line", token.start)


def _check_commands(scan: Scan, base: int, gpus: int, result: LintResult) -> None:
    """Judge the commands of a line, or of the text at `base` in it that it passes to a shell."""
    commands, unfinished, heredoc = structure(scan)
    if heredoc is not None:
        result.add("here-document", base + heredoc.start)
    if unfinished is not None:
        result.add("unfinished", base + unfinished.start, word=unfinished.text.decode())
    may_choose = MAY_CHOOSE.search(scan.text)
    detached: list[int] = []  # offsets of what no command has waited for yet
    has_setup = has_program = has_trap = False
    for command in commands:
        parts = CommandParts(command)
        if may_choose:
            _check_devices(command, parts, scan.text, base, gpus, result)
        if command.ender is not None and command.ender.text == b"&":
            detached.append(base + command.ender.start)
        elif parts.detaches:
            detached.append(base + command.words[0].start)
        elif parts.name in _WAITERS:
            detached.clear()
        has_trap |= parts.name == b"trap"
        has_setup |= parts.setup
        has_program |= not parts.setup and parts.name not in _NEUTRAL
        for inner, at in parts.inner:
            _check_commands(inner, base + at, gpus, result)
    if detached and not has_trap:
        result.add("background", detached[0])
    if base == 0:
        result.setup = has_setup and not has_program


def _check_devices(
    command: Command, parts: CommandParts, text: bytes, base: int, gpus: int, result: LintResult
) -> None:
    """Report words that choose other GPUs than the one claimed for the job, and add the edits that remove them."""
    removed: list[Token] = []
    sets_mask = False
    for word in parts.setters:
        setting = _GPU_SETTING.fullmatch(literal(word.text))
        if setting is None:
            continue
        variable, value = setting[1].decode(), setting[2]  # no value: it is unset
        is_mask = variable == "CUDA_VISIBLE_DEVICES"
        sets_mask |= is_mask
        if value is not None and _DERIVED.fullmatch(value):
            continue
        removed.append(word)
        if not (is_mask and value is not None and _NO_GPU.fullmatch(value)):
            result.add("own-devices", base + word.start, variable=variable)
        elif gpus:
            result.add("cpu-job", base + word.start, variable=variable)
    if parts.cleared is not None and not sets_mask:
        result.add("cleared-environment", base + parts.cleared.start)
    result.edits += (Edit(base + e.start, base + e.end, e.text) for e in _removal(command, parts, removed, text))


def _removal(command: Command, parts: CommandParts, removed: list[Token], text: bytes) -> list[Edit]:
    """Return the edits that remove words from a command. If nothing would be left of it, `:` replaces it."""
    if not removed:
        return []
    words = command.words
    others = [word for word in words if word not in removed and word is not parts.declarer]
    if not others or (parts.declarer is not None and all(word.text.startswith(b"-") for word in others)):
        return [Edit(words[0].start, words[-1].end, b":")]
    edits = []
    for word in removed:
        before, after = text[: word.start].rstrip(b" \t"), text[word.end :].lstrip(b" \t")
        if word is words[-1]:
            edits.append(Edit(len(before), word.end))
        else:
            edits.append(Edit(word.start, len(text) - len(after)))
    return edits
