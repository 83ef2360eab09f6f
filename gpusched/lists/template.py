"""Fill the placeholders of a command with values, quoted for the shell. Runs nothing.

Only declared names are placeholders: `{}`, `${X}`, `{a,b}` and awk's '{print}' stay as they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from gpusched.common.quantities import nearest
from gpusched.lists.shell_syntax import parse

if TYPE_CHECKING:
    from tree_sitter import Node

_BRACED = re.compile(r"(?<![$@])\{([A-Za-z_][\w.-]*)\}(?![<>])")
_OF_AWK = ("print", "next", "exit")  # awk '{print}'
_PLAIN = re.compile(r"[\w@%+=:,./-]*", re.ASCII)
_IN_DOUBLE = re.compile(r'[\\$`"]')

_VARIABLE_BEFORE = re.compile(rb"\$\w+$")

# The quoting that the shell applies at a placeholder. _APART: as _BARE or _DOUBLE, but the text beside it would absorb
# a value without quotes, as in `$DIR{name}` and `{n}>log`.
_BARE, _SINGLE, _DOUBLE = "no quotes", "single quotes", "double quotes"
_BARE_APART, _DOUBLE_APART = "no quotes, apart", "double quotes, apart"
_KINDS = {"": _BARE, "command_substitution": _BARE, "raw_string": _SINGLE, "string": _DOUBLE, "comment": "a comment"}
_KINDS |= {"ansi_c_string": "$'…'", "expansion": "${…}", "heredoc_body": "a here-document"}


class Template:
    """A text with placeholders. `shell`: values are quoted as their context in the command requires."""

    def __init__(self, text: str, names: Collection[str], *, shell: bool = False) -> None:
        self.text = text
        self._pieces: list[str] = [text]  # text, name, text, name, … text
        self._contexts: list[str] = []
        if names and "{" in text:
            placeholder = re.compile(rf"(?<!\$)\{{({'|'.join(map(re.escape, names))})\}}")
            self._pieces = placeholder.split(text)
            if shell and len(self._pieces) > 1:
                self._contexts = list(_contexts(self._pieces))

    @property
    def names(self) -> set[str]:
        """The placeholders in the text."""
        return set(self._pieces[1::2])

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with values. ValueError if a value cannot be quoted in its context."""
        if len(self._pieces) == 1:
            return self.text
        parts = list(self._pieces)
        for n, name in enumerate(self._pieces[1::2]):
            value = values[name]
            parts[2 * n + 1] = _quoted(name, value, self._contexts[n]) if self._contexts else value
        return "".join(parts)


def unfilled(text: str, names: Collection[str]) -> Iterator[tuple[int, str, str]]:
    """Yield words in braces that are no placeholders: offset, word, and a similar name if there is one."""
    for match in _BRACED.finditer(text):
        if match[1] not in names and match[1] not in _OF_AWK:
            yield match.start(), match[1], nearest(match[1], names)


def _quoted(name: str, value: str, context: str) -> str:
    if "\0" in value:
        raise ValueError(f"the value of {{{name}}} has a NUL byte, and no command can contain one")
    if context in (_BARE, _BARE_APART):
        return ("''" if context == _BARE_APART else "") + shlex.quote(value)
    if context == _DOUBLE_APART:
        return '""' + _IN_DOUBLE.sub(r"\\\g<0>", value)
    if _PLAIN.fullmatch(value):
        return value
    if context == _SINGLE:
        return value.replace("'", "'\\''")
    if context == _DOUBLE:
        return _IN_DOUBLE.sub(r"\\\g<0>", value)
    raise ValueError(f"{{{name}}} is in {context}, where {value[:60]!r} cannot be quoted")


# ---- contexts --------------------------------------------------------------------------------------


def _contexts(pieces: list[str]) -> Iterator[str]:
    """Yield for each placeholder the quoting that the shell applies there; `pieces` are text, name, text, … text."""
    data = [_encoded(piece) for piece in pieces]
    data[1::2] = (b"." * len(name) for name in data[1::2])  # a word of its own to the grammar
    text = b"".join(data)
    root = parse(text)
    at = 0
    for before, name, rest in zip(data[::2], data[1::2], data[2::2], strict=False):
        at += len(before)
        yield "an incomplete command" if root.has_error else _context(root, at, before, rest)
        at += len(name)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _context(root: Node, at: int, before: bytes, rest: bytes) -> str:
    if (len(before) - len(before.rstrip(b"\\"))) % 2:
        return "a backslash escape"
    above = []
    node = root.descendant_for_byte_range(at, at + 1)
    while node is not None:
        above.append(node)
        node = node.parent
    if any(each.type == "command_substitution" and each.children[0].type == "`" for each in above):
        return "backquotes"
    kind = next((each.type for each in above if each.type in _KINDS), "")
    context = _KINDS[kind]
    is_absorbed = _VARIABLE_BEFORE.search(before) or (context == _BARE and rest[:1] in (b"<", b">"))
    return f"{context}, apart" if is_absorbed and context in (_BARE, _DOUBLE) else context
