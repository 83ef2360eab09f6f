"""The words of `[gpus=2 mem=18G name='a b'] command` and of `#gpusched: gpus=2`, with their places.

Knows no key and no value; runs nothing and expands nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpusched.common.text import clean
from gpusched.lists.lint import Fault

DIRECTIVE = b"#gpusched:"


class Word(NamedTuple):
    """`key=value`, the value without its quotes. `bare`: nothing at all follows the `=`."""

    key: str
    value: bytes
    at: int
    bare: bool


class Block(NamedTuple):
    """The words of a block or a directive, up to the first fault. `end` is the offset behind it, -1 without one."""

    words: list[Word]
    end: int
    fault: Fault | None = None


# A bracket that begins no block: the shell's own tests, and the rows of a table that was taken for commands.
_NO_BLOCK = re.compile(rb"\[(?:[ \t\[\"'{]|[\d.+-]+,|$)")
_SIMPLE = re.compile(  # what most words are
    rb"""[ \t]*([A-Za-z][\w.-]*)=(?:([\w.,:/@%+=-]*)|'([^']*)'|"([^"\\$`]*)")(?=[ \t\]]|$)"""
)
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
    """Does this command line begin with attributes? `[` before a blank or another `[` is the shell's own."""
    return text[:1] == b"[" and not _NO_BLOCK.match(text)


def looks_like_directive(comment: bytes) -> bool:
    """Is this comment, which is no directive, meant to be one?"""
    return bool(_NEAR.match(comment))


def read_block(text: bytes, start: int) -> Block:
    """The block whose bracket stands at `start`."""
    block = _read(text, start + 1, closes=True)
    fault = block.fault
    open_quote = fault is not None and text[fault.at : fault.at + 1] in (b"'", b'"')
    if block.end < 0 and (fault is None or not (open_quote or b"]" in text[start:])):
        return block._replace(fault=_syntax(start, "this [ opens attributes and is never closed"))
    return block


def read_directive(text: bytes, start: int) -> Block:
    """The words of a directive line that begins at `start`; a `#` at the beginning of a word ends it."""
    return _read(text, start + len(DIRECTIVE), closes=False)


def _read(text: bytes, at: int, *, closes: bool) -> Block:
    words: list[Word] = []
    while True:
        simple = _SIMPLE.match(text, at)
        if simple is not None and (closes or text[simple.end() : simple.end() + 1] != b"]"):
            value = simple[simple.lastindex or 2]
            words.append(Word(_key(simple[1]), value, simple.start(1), not value and simple.lastindex == 2))
            at = simple.end()
            continue
        while text[at : at + 1] in (b" ", b"\t"):
            at += 1
        char = text[at : at + 1]
        if not char or (char == b"#" and not closes):
            return Block(words, -1 if closes else at)
        if char == b"]" and closes:
            return Block(words, at + 1)
        found = _word(text, at, closes)
        if isinstance(found, Fault):
            return Block(words, -1, found)
        words.append(found[0])
        at = found[1]


def _word(text: bytes, start: int, closes: bool) -> tuple[Word, int] | Fault:
    """A word with quotes, and where it ends."""
    keyed = _KEYED.match(text, start)
    if keyed is None:
        found = re.compile(rb"[^ \t\]]*").match(text, start)
        word = clean(found[0][:40].decode("utf-8", "replace")) if found else ""
        return _syntax(start, f"{word!r} is no attribute: key=value, with blanks between")
    parts: list[bytes] = []
    at = keyed.end()
    while (piece := _PIECE.match(text, at)) is not None:
        kind, part = str(piece.lastgroup), piece[piece.lastgroup or 0]
        if kind == "mark" and part == b"]" and closes:
            break
        if kind == "mark" and part in b"'\"":
            return _syntax(at, "this quote is not closed")
        if kind == "mark" and part == b"\\":
            return _syntax(at, "nothing follows this backslash")
        expands = _EXPANDS.match(part) if kind == "double" else None
        if expands or (kind == "mark" and (part in b"$`" or (part == b"~" and not parts))):
            place = at + expands.end() if expands else at
            message = "in attributes nothing is expanded, and the shell would expand this"
            hint = "write it out, or set it in the command; '…' around it means the characters themselves"
            return Fault("attribute-expansion", "error", place, message, hint, False)
        parts.append(_ESCAPED.sub(rb"\1", part) if kind == "double" else part)
        at = piece.end()
    return Word(_key(keyed[1]), b"".join(parts), start, not parts), at


def _key(key: bytes) -> str:
    return key.decode() if b"_" not in key or key[:4] == b"env." else key.decode().replace("_", "-")


def _syntax(at: int, message: str) -> Fault:
    return Fault("attribute-syntax", "error", at, message, _FORM, False)


_FORM = "[key=value key=value] command; values are quoted as in the shell, and lists have commas and no blanks"
