"""Split one bash command line into words and operators. Expands nothing, runs nothing.

Positions are byte offsets into `Scan.text`. Exact for quotes, escapes, comments, line continuations,
expansions and operators; a substitution is one opaque part of its word. The text must not contain a newline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_OPERATOR = re.compile(rb"&&|&>>?|&|\|\||\|&|\||;;&|;;|;&|;|<<<|<<-|<<|<&|<>|<|>>|>&|>\||>|\(|\)")
_CLOSING = {b"'": re.compile(rb"[^']*'"), b"$'": re.compile(rb"[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL)}
_SIMPLE = re.compile(rb"(?:[^ \t\\'\"`$|&;()<>]+|'[^']*'|\"[^\"\\`$]*\"|\$\w+)+")  # most words
_ARRAY = re.compile(rb"[A-Za-z_]\w*\+?=$")
_QUOTED = re.compile(rb"\$?'([^']*)'|\$?\"([^\"\\]*(?:\\.[^\"\\]*)*)\"|\\(.)", re.DOTALL)
_QUOTE = re.compile(rb"[\\'\"]")
_ESCAPED = re.compile(rb"\\([\\$`\"])")


class Token(NamedTuple):
    """A word with its quotes, or an operator."""

    text: bytes
    start: int
    is_word: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class Scan:
    """The lexical state of a command line.

    `dangling`: the text ends in a backslash that joins the next line to it, see `extend`. `open` lists the
    contexts that are not closed, as opener and offset; `comment` is the offset of the comment that ends the
    line, or -1.
    """

    __slots__ = ("_at", "_fresh", "_word", "comment", "dangling", "open", "text", "tokens")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.tokens: list[Token] = []
        self.open: list[tuple[bytes, int]] = []
        self.comment = -1
        self.dangling = False
        self._at = 0
        self._word = -1  # where the word in progress began, or -1
        self._fresh = 0  # where a `#` would begin a comment
        self._run()

    def extend(self, more: bytes) -> None:
        """Replace the backslash at the end by the next line, as the shell does."""
        self.text = self.text[:-1] + more
        if self.tokens and not self.tokens[-1].is_word and self.tokens[-1].end == self._at:
            self._at = self.tokens.pop().start  # `&` may have become `&&`
        self._run()

    def _run(self) -> None:
        self.dangling = False
        i, end = self._at, len(self.text)
        while i < end and not self.dangling:
            i = self._read_inside(i, self.open[-1][0]) if self.open else self._read_outside(i)
        self._at = i
        if not self.dangling:
            self._end_word(i)

    # Each of these reads a part of the text at `i` and returns the offset after it.

    def _read_outside(self, i: int) -> int:
        """Read a blank, a comment, an operator or a part of a word."""
        text = self.text
        char = text[i : i + 1]
        if char in b" \t":
            self._end_word(i)
            self._fresh = i + 1
            return self._fresh
        if char == b"#" and self._fresh == i:
            self.comment = i
            return len(text)
        simple, operator = _SIMPLE.match(text, i), _OPERATOR.match(text, i)
        if operator is not None and self._is_operator(char, i):
            self._end_word(i)
            self._fresh = operator.end()
            self.tokens.append(Token(operator[0], i, False))
            return self._fresh
        if self._word < 0:
            self._word = i
        return simple.end() if simple is not None else self._read_part(i, char, b"")

    def _read_inside(self, i: int, top: bytes) -> int:
        """Read a part of the innermost open context."""
        if top in _CLOSING:
            closed = _CLOSING[top].match(self.text, i)
            if closed is None:
                return len(self.text)
            self.open.pop()
            return closed.end()
        char = self.text[i : i + 1]
        if top == b"(" and char == b"#" and self._fresh == i:
            return len(self.text)  # a comment hides the closing parenthesis
        return self._read_part(i, char, top)

    def _read_part(self, i: int, char: bytes, top: bytes) -> int:
        """Read a part of a word, or open or close a context; `top` is the innermost open one."""
        quoted = top in (b'"', b'"${')  # where a single quote has no meaning
        if char == b"\\":
            self.dangling = i + 1 == len(self.text)
            return i if self.dangling else i + 2
        if char == b"`" or (char == b'"' and top != b"`"):
            if top == char:
                self.open.pop()
            else:
                self.open.append((char, i))
            return i + 1
        if top == b"`":
            return i + 1
        if char == b"$":
            return self._read_expansion(i, quoted)
        if char == b"}" and top in (b"${", b'"${'):
            self.open.pop()
            return i + 1
        if char == b"'" and not quoted:
            self.open.append((b"'", i))
            return i + 1
        return i + 1 if quoted or top == b"${" else self._read_unquoted(i, char)

    def _read_expansion(self, i: int, quoted: bool) -> int:
        opener = self.text[i : i + 2]
        if opener == b"${":
            self.open.append((b'"${' if quoted else b"${", i))
        elif opener == b"$(":
            self.open.append((b"(", i))
            self._fresh = i + 2
        elif opener == b"$'" and not quoted:
            self.open.append((b"$'", i))
        elif opener != b"$$":
            return i + 1
        return i + 2

    def _read_unquoted(self, i: int, char: bytes) -> int:
        if char == b"(" or (char in b"<>" and self.text[i + 1 : i + 2] == b"("):
            self.open.append((b"(", i))
            self._fresh = i + (1 if char == b"(" else 2)
            return self._fresh
        if char == b")":
            self.open.pop()
        elif char in b" \t;&|<>":
            self._fresh = i + 1
        return i + 1

    def _is_operator(self, char: bytes, i: int) -> bool:
        """Return True if this character of operators, outside of every context, begins no word or part of one."""
        following = self.text[i + 1 : i + 2]
        if char in b"<>":
            return following != b"("
        if char != b"(":
            return True
        if self._word < 0:
            return following != b"("  # `((` is arithmetic
        word = self.text[self._word : i]
        return not (following == b")" or word[-1:] in b"?*+@!" or _ARRAY.match(word))

    def _end_word(self, end: int) -> None:
        if self._word >= 0 and not self.open:
            self.tokens.append(Token(self.text[self._word : end], self._word, True))
            self._word = -1


def scan_commands(text: bytes) -> Iterator[tuple[int, Scan]]:
    """Yield the commands of a script with their offsets: its lines, joined where a quote or a backslash joins them."""
    at = 0
    part = b""
    for line in text.split(b"\n"):
        part += line
        scan = Scan(part)
        if scan.open or scan.dangling:
            part += b"\n"
        else:
            yield at, scan
            at += len(part) + 1
            part = b""
    if part:
        yield at, Scan(part[:-1])


def literal(word: bytes) -> bytes:
    """Return the word without its quotes; expansions stay as they are written."""
    if not _QUOTE.search(word):
        return word
    return _QUOTED.sub(_unquote, word)


def _unquote(match: re.Match[bytes]) -> bytes:
    single, double, escaped = match.groups()
    if single is not None:
        return bytes(single)
    if double is not None:
        return _ESCAPED.sub(rb"\1", double)
    return bytes(escaped)
