"""Read the nodes of a YAML file as texts, lists and maps of text, each with its position. Knows no key by name.

A node of the wrong shape is reported, and counts as empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from gpusched.config.yaml_text import InvalidYaml, compose, is_scalar, kind
from gpusched.lists.finding_table import Fault, fault
from gpusched.lists.maker import Spot

if TYPE_CHECKING:
    import yaml

Report = Callable[[Fault, Spot], None]


class Pair(NamedTuple):
    """A key of a map, its position, and the node of its value."""

    key: str
    spot: Spot
    node: yaml.Node


class Document:
    """The text of a YAML file, and readers for its nodes."""

    def __init__(self, data: bytes, report: Report) -> None:
        self._data = data
        self._lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        self._report = report

    def root(self) -> yaml.Node | None:
        """Parse the file. Return None for an empty file, and for text that is not YAML."""
        try:
            return compose(self._data)
        except InvalidYaml as error:
            has_position = error.line >= 0
            spot = self._spot(error.line, error.column) if has_position else Spot(1)
            self._report(fault("yaml" if has_position else "yaml.unreadable", problem=error), spot)
        return None

    def spot(self, node: yaml.Node) -> Spot:
        """Return the position where a node begins; verbatim for a text that the file has unchanged."""
        mark = node.start_mark
        spot = self._spot(mark.line, mark.column)
        if is_scalar(node) and node.value and "\n" not in node.value:
            value = node.value.encode()
            for at in (spot.at, spot.at + 1):  # + 1: after a quote
                if spot.source.startswith(value, at):
                    return spot._replace(at=at, verbatim=True)
        if is_scalar(node) and getattr(node, "style", None) == "|":
            values = node.value.encode().split(b"\n")
            lines = tuple(line.rstrip(b"\r") for line in self._lines[spot.line : spot.line + len(values)])
            if all(line.endswith(value) for line, value in zip(lines, values, strict=False)):
                return spot._replace(below=lines)
        return spot

    def _spot(self, line: int, column: int) -> Spot:
        source = self._lines[min(line, len(self._lines) - 1)].rstrip(b"\r")
        before = source.decode("utf-8", "replace")[:column]
        return Spot(line + 1, source, len(before.encode()))

    # ---- shapes ----

    def text(self, node: yaml.Node, subject: str) -> str:
        if is_scalar(node):
            return str(node.value)
        self._report(fault("shape.text", subject=subject, kind=kind(node)), self.spot(node))
        return ""

    def texts(self, node: yaml.Node, subject: str) -> list[str]:
        """Return the texts of a list, or a single text as a list."""
        if kind(node) == "list":
            return [self.text(item, subject) for item in node.value]
        return [self.text(node, subject)]

    def items(self, node: yaml.Node, subject: str) -> list[yaml.Node]:
        if kind(node) == "list":
            return list(node.value)
        self._report(fault("shape.list", subject=subject), self.spot(node))
        return []

    def pairs(self, node: yaml.Node, subject: str) -> Iterator[Pair]:
        """Yield the keys of a map, each once."""
        if kind(node) != "map":
            self._report(fault("shape.map", subject=subject), self.spot(node))
            return
        lines: dict[str, int] = {}
        for key_node, value in node.value:
            spot, key = self.spot(key_node), self.text(key_node, f"a key of {subject}")
            if key in lines:
                self._report(fault("key-twice", key=key, line=lines[key]), spot)
            else:
                lines[key] = spot.line
                yield Pair(key, spot, value)


def is_bare(node: yaml.Node) -> bool:
    """Return True for a missing value. A quoted text is a value, even if it is empty."""
    return is_scalar(node) and node.value in ("", "~", "null") and getattr(node, "style", None) in (None, "")
