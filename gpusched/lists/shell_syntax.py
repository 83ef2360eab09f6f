"""Read a command line, or a script, by the grammar of bash. Expands nothing, runs nothing.

Positions are byte offsets into the text. tree-sitter, which parses, is loaded with the first line that is not plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_ASCII = bytes(range(128)) + b"_" * 128  # the grammar wants UTF-8, and a command has any bytes

_LISTS = frozenset({"command", "declaration_command", "unset_command", "test_command", "variable_assignments"})
_SIMPLE = _LISTS | {"variable_assignment", "&"}
_OPAQUE = frozenset({"command_substitution", "process_substitution", "binary_expression"})
_REDIRECTIONS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})

_QUOTED = rb"(?s)\$?'([^']*)'|\$?\"([^\"\\]*(?:\\.[^\"\\]*)*)\"|\\(.)"
_ESCAPED = rb"\\([\\$`\"])"
_LEXEME = (  # of which only the last can be open
    rb"""(?s)(?:\A|[\s;&|()])\#[^\n]*|(?P<open>'[^']*\Z|"(?:[^"\\]|\\.)*(?P<inner>\\?)\Z)|(?P<end>\\\Z)"""
    rb"""|'[^']*'|"(?:[^"\\]|\\.)*"|\\."""
)


class ShellWord(NamedTuple):
    """A word of a command, with its quotes, and its offset."""

    text: bytes
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@cache
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: bytes) -> Node:
    """Return the root of the syntax tree."""
    return _parser().parse(text.translate(_ASCII)).root_node


def find_error(root: Node) -> Node | None:
    """Return the first node where the text is no complete command; None if it is one."""
    if not root.has_error:
        return None
    node = root
    while broken := [child for child in node.children if child.has_error]:
        node = broken[0]
    return node


def simple_commands(root: Node, text: bytes) -> Iterator[list[ShellWord]]:
    """Yield the words of each simple command, without redirections; and `&` as a word of its own."""
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if node.type in _SIMPLE:
            parts = node.children if node.type in _LISTS else [node]
            words = [part for part in parts if part.type not in _REDIRECTIONS]
            yield [ShellWord(text[word.start_byte : word.end_byte], word.start_byte) for word in words]
        elif node.type not in _OPAQUE:
            nodes += reversed(node.children)


def find_open_quote(text: bytes) -> int:
    """Return the offset of the quote that nothing closes, or -1."""
    return next((match.start() for match in re.finditer(_LEXEME, text) if match["open"]), -1)


def hide_quoted(text: bytes) -> bytes:
    """Return the text with `_` for each byte of its quoted parts and its comments."""
    return re.sub(_LEXEME, lambda match: b"_" * len(match[0]), text)


def continues(text: bytes) -> bool:
    """Return True if the text ends in a backslash that joins the next line to it."""
    return text.endswith(b"\\") and any(match["end"] or match["inner"] for match in re.finditer(_LEXEME, text))


def literal(word: bytes) -> bytes:
    """Return the word without its quotes; expansions stay as they are written."""
    return re.sub(_QUOTED, _unquote, word)


def _unquote(match: re.Match[bytes]) -> bytes:
    single, double, escaped = match.groups()
    if single is not None:
        return bytes(single)
    return bytes(escaped) if double is None else re.sub(_ESCAPED, rb"\1", double)
