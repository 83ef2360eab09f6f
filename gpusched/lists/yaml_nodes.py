"""The nodes of a YAML file as texts, lists and maps of text, each with its place. Knows no key by name.

What has the wrong shape is complained of, and reading goes on with nothing in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusched.lists.maker import Spot

if TYPE_CHECKING:
    import yaml

Complain = Callable[[str, str, Spot, str], None]  # code, message, place, hint

_QUOTE = "a value that begins with { or [, or that holds ': ' or ' #', needs quotes: '…'"


class Pair(NamedTuple):
    """A key of a map, its place, and what stands behind it."""

    key: str
    spot: Spot
    node: yaml.Node


class Document:
    """A file that was read, and what its nodes hold."""

    def __init__(self, data: bytes, complain: Complain) -> None:
        self._data = data
        self._lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        self._complain = complain

    def root(self) -> yaml.Node | None:
        """The whole of it; None for an empty file, and for what is not YAML."""
        import yaml

        loader: type[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
        try:
            return yaml.compose(self._data, Loader=loader)
        except UnicodeDecodeError:
            self._complain("yaml", "this file is not UTF-8", Spot(1), "")
        except RecursionError:
            self._complain("yaml", "this is nested too deeply", Spot(1), "")
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
            spot = self._place(mark.line, mark.column) if mark is not None else Spot(1)
            self._complain("yaml", f"this is not YAML: {problem}", spot, _QUOTE)
        return None

    def spot(self, node: yaml.Node) -> Spot:
        """Where it begins; verbatim for a text that stands there as it is."""
        mark = node.start_mark
        spot = self._place(mark.line, mark.column)
        if is_scalar(node) and node.value and "\n" not in node.value:
            value = node.value.encode()
            for at in (spot.at, spot.at + 1):  # behind a quote
                if spot.source.startswith(value, at):
                    return spot._replace(at=at, verbatim=True)
        if is_scalar(node) and getattr(node, "style", None) == "|":
            wanted = node.value.encode().split(b"\n")
            found = tuple(line.rstrip(b"\r") for line in self._lines[spot.line : spot.line + len(wanted)])
            if all(line.endswith(value) for line, value in zip(found, wanted, strict=False)):
                return spot._replace(below=found)
        return spot

    def _place(self, line: int, column: int) -> Spot:
        source = self._lines[min(line, len(self._lines) - 1)].rstrip(b"\r")
        before = source.decode("utf-8", "replace")[:column]
        return Spot(line + 1, source, len(before.encode()))

    # ---- shapes ----

    def text(self, node: yaml.Node, what: str) -> str:
        if is_scalar(node):
            return str(node.value)
        self._complain("shape", f"{what} must be text, not a {kind(node)}", self.spot(node), _QUOTE)
        return ""

    def texts(self, node: yaml.Node, what: str) -> list[str]:
        """A list of texts, or one alone."""
        if kind(node) == "list":
            return [self.text(item, what) for item in node.value]
        return [self.text(node, what)]

    def items(self, node: yaml.Node, what: str) -> list[yaml.Node]:
        if kind(node) == "list":
            return list(node.value)
        self._complain("shape", f"{what} must be a list, each item behind a dash", self.spot(node), "")
        return []

    def pairs(self, node: yaml.Node, what: str) -> Iterator[Pair]:
        """The keys of a map, none of them twice."""
        if kind(node) != "map":
            self._complain("shape", f"{what} must be a map, with lines such as 'key: value'", self.spot(node), "")
            return
        seen: dict[str, int] = {}
        for key_node, value in node.value:
            spot = self.spot(key_node)
            if not is_scalar(key_node):
                self._complain("shape", f"a key of {what} must be text", spot, _QUOTE)
                continue
            key = str(key_node.value)
            if key in seen:
                self._complain("key-twice", f"{key} stands in line {seen[key]} of this map already", spot, "")
                continue
            seen[key] = spot.line
            yield Pair(key, spot, value)


def kind(node: yaml.Node) -> str:
    return {"scalar": "text", "sequence": "list", "mapping": "map"}[getattr(node, "id", "scalar")]


def is_scalar(node: yaml.Node) -> bool:
    return kind(node) == "text"


def is_bare(node: yaml.Node) -> bool:
    """Does nothing stand there? A quoted text is something, even if it is empty."""
    return is_scalar(node) and node.value in ("", "~", "null") and getattr(node, "style", None) in (None, "")
