"""Find the words and operators of one bash command line. Expands nothing, runs nothing.

Positions are byte offsets into `Scan.text`. Exact for quotes, escapes, comments, line continuations,
expansions and operators; a substitution is one opaque part of its word. No newline may be in the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_OPERATOR = re.compile(rb"&&|&>>?|&|\|\||\|&|\||;;&|;;|;&|;|<<<|<<-|<<|<&|<>|<|>>|>&|>\||>|\(|\)")
_BLANKS = re.compile(rb"[ \t]*")
_CLOSING = {b"'": re.compile(rb"[^']*'"), b"$'": re.compile(rb"[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL)}
_SIMPLE = re.compile(rb"(?:[^ \t\\'\"`$|&;()<>]+|'[^']*'|\"[^\"\\`$]*\"|\$\w+)+")  # what most words are
_RUN = re.compile(rb"[^ \t\\'\"`$|&;()<>]+")
_RUN_BACKQUOTED = re.compile(rb"[^\\`]+")
_RUN_QUOTED = re.compile(rb"[^\\'\"`$}]+")
_ARRAY = re.compile(rb"[A-Za-z_]\w*\+?=$")
_QUOTED = re.compile(rb"\$?'([^']*)'|\$?\"([^\"\\]*(?:\\.[^\"\\]*)*)\"|\\(.)", re.DOTALL)
_QUOTE = re.compile(rb"[\\'\"]")
_ESCAPED = re.compile(rb"\\([\\$`\"])")


class Token(NamedTuple):
    """A word, quotes and all, or an operator."""

    text: bytes
    start: int
    is_word: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class Scan:
    """The lexical state of a command line.

    `dangling` says that the text ends in a backslash that joins the next line to it: see `extend`.
    `open` holds what was opened and not closed, with its offset; `comment` the offset of the comment
    that ends the line, or -1.
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
        """Put the next line, or nothing, in the place of the backslash at the end, as the shell does."""
        self.text = self.text[:-1] + more
        if self.tokens and not self.tokens[-1].is_word and self.tokens[-1].end == self._at:
            self._at = self.tokens.pop().start  # `&` may have become `&&`
        self._run()

    def _run(self) -> None:
        text, stack, i, end = self.text, self.open, self._at, len(self.text)
        self.dangling = False
        while i < end:
            top = stack[-1][0] if stack else b""
            if top in _CLOSING:
                closed = _CLOSING[top].match(text, i)
                if closed is None:
                    i = end
                    break
                stack.pop()
                i = closed.end()
                continue
            char = text[i : i + 1]
            if not stack:
                if char in b" \t":
                    self._end_word(i)
                    self._fresh = i = _match_end(_BLANKS, text, i)
                    continue
                if char == b"#" and self._fresh == i:
                    self.comment = i
                    return
                simple = _SIMPLE.match(text, i)
                if simple is not None:
                    if self._word < 0:
                        self._word = i
                    i = simple.end()
                    continue
                if self._is_operator(char, i):
                    self._end_word(i)
                    operator = text[i : _match_end(_OPERATOR, text, i)]
                    self.tokens.append(Token(operator, i, False))
                    self._fresh = i = i + len(operator)
                    continue
                if self._word < 0:
                    self._word = i
            elif top == b"(" and char == b"#" and self._fresh == i:
                i = end  # a comment hides the closing parenthesis
                break
            if char == b"\\":
                if i + 1 == end:
                    self.dangling = True
                    break
                i += 2
            else:
                i = self._part(char, top, i)
        self._at = i
        if not self.dangling:
            self._end_word(i)

    def _part(self, char: bytes, top: bytes, i: int) -> int:
        """Take the part of a word that begins at `i`, or open or close a context; say where it ends."""
        text, stack = self.text, self.open
        quoted = top in (b'"', b'"${')  # where a single quote is nothing special
        if char == b"`" or (char == b'"' and top != b"`"):
            if top == char:
                stack.pop()
            else:
                stack.append((char, i))
            return i + 1
        if top == b"`":
            return _match_end(_RUN_BACKQUOTED, text, i)
        if char == b"$":
            opener = text[i : i + 2]
            if opener == b"${":
                stack.append((b'"${' if quoted else b"${", i))
            elif opener == b"$(":
                stack.append((b"(", i))
                self._fresh = i + 2
            elif opener == b"$'" and not quoted:
                stack.append((b"$'", i))
            elif opener != b"$$":
                return i + 1
            return i + 2
        if char == b"}" and top in (b"${", b'"${'):
            stack.pop()
            return i + 1
        if char == b"'" and not quoted:
            stack.append((b"'", i))
            return i + 1
        if quoted or top == b"${":
            return max(i + 1, _match_end(_RUN_QUOTED, text, i))
        if char in b"<>" and text[i + 1 : i + 2] == b"(":
            stack.append((b"(", i))
            self._fresh = i + 2
            return i + 2
        if char == b"(":
            stack.append((b"(", i))
            self._fresh = i + 1
            return i + 1
        if char == b")":
            stack.pop()
            return i + 1
        if char in b" \t;&|<>":
            self._fresh = i + 1
            return i + 1
        return max(i + 1, _match_end(_RUN, text, i))

    def _is_operator(self, char: bytes, i: int) -> bool:
        """Outside of everything: is this an operator, and not the beginning or a part of a word?"""
        if char not in b"|&;<>()":
            return False
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


def _match_end(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def literal(word: bytes) -> bytes:
    """The word without its quotes; expansions stay as they are written."""
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
