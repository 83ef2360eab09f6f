"""Fill the placeholders of a command with values, quoted for the shell. Runs nothing.

Only declared names are placeholders: `{}`, `${X}`, `{a,b}` and awk's '{print}' stay as they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping

from gpusched.common.quantities import nearest
from gpusched.lists.command_parts import structure
from gpusched.lists.shell_lexer import Scan, scan_commands

_BRACED = re.compile(r"(?<![$@])\{([A-Za-z_][\w.-]*)\}(?![<>])")
_PLAIN = re.compile(r"[\w@%+=:,./-]*", re.ASCII)
_IN_DOUBLE = re.compile(r'[\\$`"]')

_VARIABLE_BEFORE = re.compile(rb"\$\w+$")

# The quoting that the shell applies at a placeholder. _APART: as _BARE or _DOUBLE, but the text beside it would absorb
# a value without quotes, as in `$DIR{name}` and `{n}>log`.
_BARE, _SINGLE, _DOUBLE = "no quotes", "single quotes", "double quotes"
_BARE_APART, _DOUBLE_APART = "no quotes, apart", "double quotes, apart"


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
                self._contexts = list(_contexts(text, [match.start() for match in placeholder.finditer(text)]))

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


def misspelt(text: str, names: Collection[str]) -> Iterator[tuple[int, str, str]]:
    """Yield words in braces that are no placeholders but resemble one: offset, word, and the similar name."""
    for match in _BRACED.finditer(text):
        if match[1] not in names and (similar := nearest(match[1], names)):
            yield match.start(), match[1], similar


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


def _contexts(text: str, offsets: list[int]) -> Iterator[str]:
    """Yield for each offset the quoting that the shell applies there. What follows a here-document is part of it."""
    data = _encoded(text)
    commands = list(scan_commands(data))
    heredoc = next((at + len(scan.text) for at, scan in commands if structure(scan).heredoc), len(data))
    for offset in offsets:
        position = len(_encoded(text[:offset]))
        start = max(at for at, _ in commands if at <= position)
        yield "a here-document" if position > heredoc else _context(data[start:position], data[position:])


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _context(before: bytes, rest: bytes) -> str:
    scan = Scan(before)
    if scan.comment >= 0:
        return "a comment"
    if scan.dangling:
        return "a backslash escape"
    kinds = [opener for opener, _ in scan.open]
    if b"`" in kinds:
        return "backquotes"
    top = kinds[-1] if kinds else b""
    if top in (b"", b"("):
        is_beside = rest[rest.index(b"}") + 1 :][:1] in (b"<", b">")
        return _BARE_APART if is_beside or _VARIABLE_BEFORE.search(before) else _BARE
    if top == b'"':
        return _DOUBLE_APART if _VARIABLE_BEFORE.search(before) else _DOUBLE
    return {b"'": _SINGLE, b"$'": "$'…'"}.get(top, "${…}")
