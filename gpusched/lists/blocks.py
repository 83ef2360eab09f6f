"""Read the words of `[gpus=2 mem=18G name='a b'] command` and of `#gpusched: gpus=2`, with their offsets.

Knows no key and no value; runs nothing and expands nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpusched.common.text import clean
from gpusched.lists.finding_table import Fault, fault

DIRECTIVE = b"#gpusched:"


class Word(NamedTuple):
    """`key=value`, the value without its quotes. `bare`: nothing follows the `=`."""

    key: str
    value: bytes
    at: int
    bare: bool


class AttributeBlock(NamedTuple):
    """The words of a block or a directive, up to the first fault. `end` is the offset after it, -1 if it has no end."""

    words: list[Word]
    end: int
    fault: Fault | None = None


# A bracket that begins no block: a test of the shell, or a row of a table.
_NO_BLOCK = re.compile(rb"\[(?:[ \t\[\"'{]|[\d.+-]+,|$)")
_OTHER = re.compile(rb"[^ \t\]]*")
_KEYED = re.compile(rb"([A-Za-z][\w.-]*)=")
_PIECE = re.compile(
    rb"""(?P<plain>[^ \t'"\\$`\]~]+)|'(?P<single>[^']*)'|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"|\\(?P<escaped>.)"""
    rb"""|(?P<mark>['"\\$`\]~])""",
    re.DOTALL,
)
_EXPANDS = re.compile(rb"(?:[^\\$`]|\\.)*[$`]", re.DOTALL)
_ESCAPED = re.compile(rb"\\([\\$`\"])")
_NEAR = re.compile(rb"#[ \t]*gpusched[ \t]*:?[ \t]*[a-z-]+=", re.IGNORECASE)


def opens_block(text: bytes) -> bool:
    """Return True if this command line begins with attributes. `[` before a blank or another `[` is the shell's."""
    return text[:1] == b"[" and not _NO_BLOCK.match(text)


def looks_like_directive(comment: bytes) -> bool:
    """Return True if this comment resembles a directive, though it is none."""
    return bool(_NEAR.match(comment))


def read_block(text: bytes, start: int) -> AttributeBlock:
    """Read the block whose bracket is at `start`. A blank and a command without a block of its own must follow it."""
    block = _read(text, start + 1, closes=True)
    if block.end < 0:
        is_quote_open = block.fault is not None and text[block.fault.at : block.fault.at + 1] in (b"'", b'"')
        if block.fault is None or not (is_quote_open or b"]" in text[start:]):
            return block._replace(fault=fault("attribute-syntax.open", start))
        return block
    command = text[block.end :].lstrip(b" \t")
    if command and text[block.end : block.end + 1] not in b" \t":
        return block._replace(fault=fault("attribute-end.blank", block.end))
    if opens_block(command):
        return block._replace(fault=fault("attribute-end.second", len(text) - len(command)))
    return block


def read_directive(text: bytes, start: int) -> AttributeBlock:
    """Read the words of a directive line that begins at `start`; a `#` at the beginning of a word ends it."""
    return _read(text, start + len(DIRECTIVE), closes=False)


def _read(text: bytes, at: int, *, closes: bool) -> AttributeBlock:
    words: list[Word] = []
    while True:
        while text[at : at + 1] in (b" ", b"\t"):
            at += 1
        char = text[at : at + 1]
        if not char or (char == b"#" and not closes):
            return AttributeBlock(words, -1 if closes else at)
        if char == b"]" and closes:
            return AttributeBlock(words, at + 1)
        item = _word(text, at, closes)
        if isinstance(item, Fault):
            return AttributeBlock(words, -1, item)
        words.append(item[0])
        at = item[1]


def _word(text: bytes, start: int, closes: bool) -> tuple[Word, int] | Fault:
    """Read a word with quotes. Return it with the offset after it."""
    keyed = _KEYED.match(text, start)
    if keyed is None:
        other = _OTHER.match(text, start)
        word = clean(other[0][:40].decode("utf-8", "replace")) if other else ""
        return fault("attribute-syntax.word", start, word=word)
    parts: list[bytes] = []
    at = keyed.end()
    while (piece := _PIECE.match(text, at)) is not None:
        kind, part = str(piece.lastgroup), piece[piece.lastgroup or 0]
        if kind == "mark" and part == b"]" and closes:
            break
        problem = _piece_fault(kind, part, at, is_first=not parts)
        if problem is not None:
            return problem
        parts.append(_ESCAPED.sub(rb"\1", part) if kind == "double" else part)
        at = piece.end()
    return Word(_key(keyed[1]), b"".join(parts), start, not parts), at


def _piece_fault(kind: str, part: bytes, at: int, *, is_first: bool) -> Fault | None:
    """Return the fault of a piece of a value, if it has one."""
    expansion = _EXPANDS.match(part) if kind == "double" else None
    if expansion is not None:
        return fault("attribute-expansion", at + expansion.end())
    if kind != "mark" or part == b"]" or (part == b"~" and not is_first):
        return None
    return fault("attribute-expansion" if part in b"$`~" else "attribute-syntax.quote", at)


def _key(key: bytes) -> str:
    return key.decode() if b"_" not in key or key[:4] == b"env." else key.decode().replace("_", "-")
