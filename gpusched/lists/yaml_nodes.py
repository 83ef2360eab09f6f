"""Read the nodes of a YAML file as texts, lists and maps of text, each with its position. Knows no key by name.

A node of the wrong shape is reported, and counts as empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusched.config.yaml_text import InvalidYaml, compose, is_scalar, kind
from gpusched.lists.finding_table import fault
from gpusched.lists.maker import Maker, Spot, exact_spot

if TYPE_CHECKING:
    import yaml


class Pair(NamedTuple):
    """A key of a map, its position, and the node of its value."""

    key: str
    spot: Spot
    node: yaml.Node


class Document:
    """The text of a YAML file, and readers for its nodes. `faults` counts what was refused."""

    def __init__(self, data: bytes, maker: Maker) -> None:
        self._data = data
        self._lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        self.maker = maker
        self.faults = 0

    def refuse(self, row: str, spot: Spot, /, **values: Any) -> None:
        """Report the fault of a row of the table."""
        self.faults += 1
        self.maker.report(fault(row, **values), spot)

    def root(self) -> yaml.Node | None:
        """Parse the file. Return None for an empty file, and for text that is not YAML."""
        try:
            return compose(self._data)
        except InvalidYaml as error:
            if error.line < 0:
                self.refuse("encoding.yaml", Spot(1), problem=error)
            else:
                self.refuse("yaml", self._spot(error.line, error.column), problem=error)
            return None

    def spot(self, node: yaml.Node) -> Spot:
        """Return the position where a node begins; verbatim for a text that the file has unchanged."""
        mark = node.start_mark
        spot = self._spot(mark.line, mark.column)
        if is_scalar(node) and node.value and "\n" not in node.value:
            value = node.value.encode()
            for at in (spot.at, spot.at + 1):  # + 1: after a quote
                if spot.source.startswith(value, at):
                    return exact_spot(spot.line, spot.source, at)
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
        self.refuse("shape.text", self.spot(node), subject=subject, kind=kind(node))
        return ""

    def texts(self, node: yaml.Node, subject: str) -> list[str]:
        """Return the texts of a list, or a single text as a list."""
        if kind(node) == "list":
            return [self.text(item, subject) for item in node.value]
        return [self.text(node, subject)]

    def items(self, node: yaml.Node, subject: str) -> list[yaml.Node]:
        if kind(node) == "list":
            return list(node.value)
        self.refuse("shape.list", self.spot(node), subject=subject)
        return []

    def pairs(self, node: yaml.Node, subject: str) -> Iterator[Pair]:
        """Yield the keys of a map, each once."""
        if kind(node) != "map":
            self.refuse("shape.map", self.spot(node), subject=subject)
            return
        lines: dict[str, int] = {}
        for key_node, value in node.value:
            spot, key = self.spot(key_node), self.text(key_node, f"a key of {subject}")
            if key in lines:
                self.refuse("key-twice", spot, key=key, line=lines[key])
            else:
                lines[key] = spot.line
                yield Pair(key, spot, value)


def is_bare(node: yaml.Node) -> bool:
    """Return True for a missing value. A quoted text is a value, even if it is empty."""
    return is_scalar(node) and node.value in ("", "~", "null") and getattr(node, "style", None) in (None, "")
