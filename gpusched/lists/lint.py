"""Judge one command: report mistakes, and doubtful parts. Changes nothing, reads no files.

The rules are those of bash. Errors that depend on them are forceable, since another shell may differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpusched.common import look_alikes
from gpusched.common.text import clean
from gpusched.lists.command_parts import CLOSERS, CommandParts
from gpusched.lists.finding_table import fault
from gpusched.lists.findings import Finding
from gpusched.lists.shell_syntax import (
    ShellWord,
    find_error,
    find_open_quote,
    hide_quoted,
    literal,
    parse,
    simple_commands,
)

if TYPE_CHECKING:
    from tree_sitter import Node


class Edit(NamedTuple):
    """A replacement of the bytes from `start` to `end` by `text`."""

    start: int
    end: int
    text: bytes = b""


@dataclass(slots=True)
class LintResult:
    """The judgement of one line. `setup`: it only sets something up."""

    faults: dict[str, Finding] = field(default_factory=dict)  # the first of each code
    edits: list[Edit] = field(default_factory=list)  # that remove the line's own choice of GPUs
    setup: bool = False

    def add(self, name: str, at: int, /, **values: str) -> None:
        """Add the fault of a row of the table, if it is the first of its code. A warning replaces one at its column."""
        new = fault(name, at, **values)
        if new.severity == "warning":
            self.faults = {c: each for c, each in self.faults.items() if (each.severity, each.at) != ("warning", at)}
        self.faults.setdefault(new.code, new)


def apply_edits(edits: list[Edit], text: bytes) -> bytes:
    """Return the text with the edits applied; every other byte stays."""
    parts: list[bytes] = []
    at = 0
    for edit in sorted(edits):
        parts += (text[at : max(at, edit.start)], edit.text)
        at = max(at, edit.end)
    return b"".join(parts) + text[at:]


_ESCAPED_BLANK = re.compile(rb"(?<!\\)(?:\\\\)*(\\)[ \t]+$")
_NUMBER = re.compile(rb"[+-]?(?:\d[\d_.,:;/%-]*(?:[eE][+-]?\d+)?|\.\d+)")

_GPU_SETTING = re.compile(rb"(CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER)(?:\+?=(.*))?", re.DOTALL)
_DERIVED = re.compile(rb".*(?:CUDA_VISIBLE_DEVICES|GPUSCHED_).*|PCI_BUS_ID", re.DOTALL)  # from what the job gets
_NO_GPU = re.compile(rb"-1|none|NoDevFiles|void|", re.IGNORECASE)

_NEUTRAL = frozenset({b"[", b"[[", b"test", b":", b"true", b"in"})
_WAITERS = frozenset({b"wait", b"fg", b"kill", b"pkill", b"killall"})


def check(text: bytes, *, gpus: int = 1) -> LintResult:
    """Judge a command whose job gets `gpus` GPUs: a line, or a script of several."""
    result = LintResult()
    _check_ends(text, result)
    root = parse(text)
    error = find_error(root)
    if error is not None and (quote := find_open_quote(text)) >= 0:
        result.add("open-quote", quote)
    elif error is not None and not result.faults:
        result.add("unfinished", min(error.start_byte, len(text.rstrip()) - 1))
    _check_commands(root, text, 0, gpus, result)
    if not text.isascii():
        bare = hide_quoted(text).decode("utf-8", "surrogateescape")
        at, name = look_alikes.find(bare)
        if at >= 0:
            result.add("look-alike", len(bare[:at].encode("utf-8", "surrogateescape")), name=name)
    return result


def _check_ends(text: bytes, result: LintResult) -> None:
    """Check the first word, and whether a blank hides a backslash at the end."""
    start = len(text) - len(text.lstrip())
    raw = text.split(None, 1)[0]
    word = literal(raw)
    is_row = b"," in word and not any(mark in raw for mark in (b"/", b"$", b"{", b"=", b"`"))
    if is_row or _NUMBER.fullmatch(word) or raw[:2] in (b'{"', b'["', b"[{"):
        result.add("parameter-table", start, word=clean(raw[:40].decode("utf-8", "replace")))
    elif word.startswith(b"-"):
        result.add("option-line", start)
    if match := _ESCAPED_BLANK.search(text):
        result.add("backslash-blank", match.start(1))


def _check_commands(root: Node, text: bytes, base: int, gpus: int, result: LintResult) -> None:
    """Judge the commands of a text, or of the part at `base` in it that it passes to a shell."""
    detached: list[int] = []  # offsets of what no command has waited for yet
    harms: list[tuple[str, int]] = []
    has_setup = has_program = has_trap = False
    for words in simple_commands(root, text):
        if words[0].text == b"&":
            detached.append(base + words[0].start)
            continue
        if words[0].text in CLOSERS:
            result.add("unfinished", base + words[0].start)
        for word in words:
            if name := look_alikes.in_option(literal(word.text).decode("utf-8", "replace")):
                result.add("look-alike.option", base + word.start, name=name)
        parts = CommandParts(words)
        _check_devices(words, parts, text, base, gpus, result)
        if parts.detaches:
            detached.append(base + words[0].start)
        elif parts.name in _WAITERS:
            detached.clear()
        if parts.harm:
            harms.append((parts.harm, base + words[0].start))
        has_trap |= parts.name == b"trap"
        has_setup |= parts.setup
        has_program |= not parts.setup and parts.name not in _NEUTRAL
        if parts.script is not None and literal(parts.script.text) == parts.script.text[1:-1]:
            script = parts.script.text[1:-1]
            _check_commands(parse(script), script, base + parts.script.start + 1, gpus, result)
    if detached and not has_trap:
        result.add("background", detached[0])
    for name, at in harms:
        result.add(name, at)
    if base == 0:
        result.setup = has_setup and not has_program


def _check_devices(
    words: list[ShellWord], parts: CommandParts, text: bytes, base: int, gpus: int, result: LintResult
) -> None:
    """Report words that choose other GPUs than the one claimed for the job, and add the edits that remove them."""
    removed: list[ShellWord] = []
    if parts.cleared is not None and not any(b"CUDA_VISIBLE_DEVICES=" in word.text for word in parts.setters):
        result.add("cleared-environment", base + parts.cleared.start)
    for word in parts.setters:
        setting = _GPU_SETTING.fullmatch(literal(word.text))
        if setting is None:
            continue
        variable, value = setting[1].decode(), setting[2]  # no value: it is unset
        if value is not None and _DERIVED.fullmatch(value):
            continue
        removed.append(word)
        if not (variable == "CUDA_VISIBLE_DEVICES" and value is not None and _NO_GPU.fullmatch(value)):
            result.add("own-devices", base + word.start, variable=variable)
        elif gpus:
            result.add("cpu-job", base + word.start, variable=variable)
    result.edits += (Edit(base + e.start, base + e.end, e.text) for e in _removal(words, parts, removed, text))


def _removal(words: list[ShellWord], parts: CommandParts, removed: list[ShellWord], text: bytes) -> list[Edit]:
    """Return the edits that remove words from a command. If nothing would be left of it, `:` replaces it."""
    if not removed:
        return []
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
