"""Read the words of `[gpus=2 mem=18G name='a b'] command` and of `#gpusched: gpus=2`, with their offsets.

Knows no key and no value; runs nothing and expands nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpusched.common import look_alikes
from gpusched.common.text import clean
from gpusched.lists.finding_table import fault
from gpusched.lists.findings import Finding
from gpusched.lists.shell_syntax import literal

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
    fault: Finding | None = None


# A bracket that begins no block: a test of the shell, or a row of a table.
_NO_BLOCK = rb"\[(?:[ \t\[\"'{]|[\d.+-]+,|$)"
_WORD = rb"""(?s)[ \t]*([A-Za-z][\w.-]*)=((?!~)(?:[^\s'"\\$`\]]|'[^']*'|"(?:[^"\\$`]|\\.)*"|\\.)*)(?=[ \t\]]|\Z)"""
_NEAR = rb"(?i)#[ \t]*gpusched[ \t]*:?[ \t]*[a-z-]+="


def opens_block(text: bytes) -> bool:
    """Return True if this command line begins with attributes. `[` before a blank or another `[` is the shell's."""
    return text[:1] == b"[" and not re.match(_NO_BLOCK, text)


def looks_like_directive(comment: bytes) -> bool:
    """Return True if this comment resembles a directive, though it is none."""
    return bool(re.match(_NEAR, comment))


def read_block(text: bytes, start: int) -> AttributeBlock:
    """Read the block whose bracket is at `start`."""
    block = _read(text, start + 1, closes=True)
    if block.end < 0 and b"]" not in text[start:]:
        return block._replace(fault=fault("attribute-syntax.open", start))
    return block


def read_directive(text: bytes, start: int) -> AttributeBlock:
    """Read the words of a directive line that begins at `start`; a `#` at the beginning of a word ends it."""
    return _read(text, start + len(DIRECTIVE), closes=False)


def _read(text: bytes, at: int, *, closes: bool) -> AttributeBlock:
    words: list[Word] = []
    while match := re.compile(_WORD).match(text, at):
        words.append(Word(match[1].decode(), literal(match[2]), match.start(1), not match[2]))
        at = match.end()
    rest = text[at:].lstrip(b" \t")
    at = len(text) - len(rest)
    if closes and rest[:1] == b"]":
        return AttributeBlock(words, at + 1)
    if not closes and rest[:1] in (b"", b"#"):
        return AttributeBlock(words, at)
    word = rest[:40].partition(b" ")[0].decode("utf-8", "replace")
    name = look_alikes.find(word)[1]
    row = "attribute-syntax.look-alike" if name else "attribute-syntax"
    return AttributeBlock(words, -1, fault(row, at, word=clean(word), look_alike=name))
