"""Parse a YAML job file: `defaults:`, and `jobs:` of commands, of maps with attributes, and of sweeps.

Opens no file: a function that reads a sweep's table is an argument. Every value is text: 010 stays 010, no stays no.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpusched.config.yaml_text import is_scalar, kind
from gpusched.lists.attributes import ENV, KEYS, key_fault
from gpusched.lists.finding_table import Fault, fault, suggest
from gpusched.lists.joblist import JobFile
from gpusched.lists.maker import ListEntry, Maker, Spot, StatedAttributes
from gpusched.lists.parameters import MAX_JOBS, Axis, repeated, span, table
from gpusched.lists.yaml_nodes import Document, Pair, is_bare

if TYPE_CHECKING:
    import yaml

Exclusion = tuple[Mapping[str, Collection[str]], Spot]

_TOP = ("defaults", "jobs")
_COMMANDS = ("command", "run")
_AXES = ("csv", "zip", "grid", "repeat")  # the last one changes fastest
_SWEEP = (*_AXES, "exclude")
_ATTRIBUTES = (*KEYS, "env", "tags")
_LISTS = ("tag", "after", "after-any", "after-failed", "after-ended")


def parse(data: bytes, read: Callable[[str], bytes], **options: Any) -> JobFile:
    """Parse a job file. `read` returns the bytes of a file that it names, or raises OSError; `options` as for Maker."""
    maker = Maker(**options)
    _YamlReader(data, read, maker).read_file()
    return maker.take(complete=data.endswith(b"\n"))


class _YamlReader:
    """Reads the nodes of a file and passes its jobs to the maker."""

    def __init__(self, data: bytes, read: Callable[[str], bytes], maker: Maker) -> None:
        self._document = Document(data, self._refuse)
        self._read = read
        self._maker = maker
        self._faults = 0
        self._defaults: dict[str, StatedAttributes] = {}

    def _refuse(self, fault: Fault, spot: Spot) -> None:
        self._faults += 1
        self._maker.report(fault, spot)

    def _unknown(self, pair: Pair, keys: Collection[str], name: str = "key") -> None:
        fields = {"key": pair.key, "suggestion": suggest(pair.key, keys), "keys": ", ".join(keys)}
        self._refuse(fault(name, **fields), pair.spot)

    # ---- the file ----

    def read_file(self) -> None:
        root = self._document.root()
        if root is None or is_bare(root):
            return
        parts: dict[str, Pair] = {}
        for pair in self._document.pairs(root, "a job file"):
            parts[pair.key] = pair
            if pair.key not in _TOP:
                self._unknown(pair, _TOP)
        if "defaults" in parts:
            self._set_defaults(parts["defaults"].node)
        if "jobs" in parts:
            for node in self._document.items(parts["jobs"].node, "jobs"):
                self._job(node)
        elif not self._faults:
            self._refuse(fault("shape.no-jobs"), self._document.spot(root))

    def _set_defaults(self, node: yaml.Node) -> None:
        if is_bare(node):
            return
        pairs = []
        for pair in self._document.pairs(node, "defaults"):
            if pair.key in (*_COMMANDS, *_SWEEP, "name"):
                self._refuse(fault("key.one-job", key=pair.key), pair.spot)
            else:
                pairs.append(pair)
        self._defaults = self._attributes(pairs, {})

    def _job(self, node: yaml.Node) -> None:
        before = self._faults
        if is_scalar(node):
            attributes = list(self._defaults.values())
            entry = ListEntry(node.value, self._document.spot(node), attributes, block=True)
        else:
            entry = self._entry(node)
        if self._faults == before:
            self._maker.add(entry)

    def _entry(self, node: yaml.Node) -> ListEntry:
        document, spot = self._document, self._document.spot(node)
        pairs = {pair.key: pair for pair in document.pairs(node, "a job")}
        attributes = self._attributes([p for p in pairs.values() if p.key not in (*_COMMANDS, *_SWEEP)], self._defaults)
        commands = [key for key in _COMMANDS if key in pairs]
        command = ""
        if len(commands) == 1:
            text = pairs[commands[0]].node
            command, spot = document.text(text, commands[0]), document.spot(text)
        elif kind(node) == "map":
            self._refuse(fault("shape.two-commands" if commands else "shape.no-command"), spot)
        axes = [axis for key in _AXES if key in pairs for axis in self._axes(key, pairs[key].node)]
        names = [name for axis in axes for name in axis.names]
        excluded = list(self._excluded(pairs["exclude"].node, names)) if "exclude" in pairs else []
        return ListEntry(command, spot, list(attributes.values()), axes, excluded)

    # ---- attributes ----

    def _attributes(
        self, pairs: Iterable[Pair], defaults: Mapping[str, StatedAttributes]
    ) -> dict[str, StatedAttributes]:
        """Return the attributes of a map, over the defaults; a key without a value removes a default."""
        attributes = dict(defaults)
        lines: dict[str, int] = {}
        for pair in pairs:
            if pair.key == "env":
                inner = self._document.pairs(pair.node, "env") if not is_bare(pair.node) else ()
                pairs_of_key = [each._replace(key=ENV + each.key) for each in inner]
            else:
                key = pair.key if pair.key.startswith(ENV) else pair.key.replace("_", "-")
                pairs_of_key = [pair._replace(key="tag" if key == "tags" else key)]
            for each in pairs_of_key:
                if each.key in lines:  # tag and tags
                    self._refuse(fault("key-twice", key=each.key, line=lines[each.key]), each.spot)
                lines[each.key] = each.spot.line
                self._state(attributes, each)
        return attributes

    def _state(self, attributes: dict[str, StatedAttributes], pair: Pair) -> None:
        key, spot, node = pair
        problem = key_fault(key)
        if problem is not None and problem.code == "attribute-key" and not key.startswith(ENV):
            self._unknown(pair, (*_COMMANDS, *_ATTRIBUTES, *_SWEEP))
        elif problem is not None:
            self._refuse(problem, spot)
        elif is_bare(node):
            attributes.pop(key, None)
        else:
            texts = self._document.texts(node, key) if key in _LISTS else [self._document.text(node, key)]
            text, value_spot = ",".join(texts), self._document.spot(node)
            attributes[key] = StatedAttributes(key, text, value_spot)
            if (key == "cwd" and text.startswith("~")) or ("$" in text and key not in _LISTS):
                self._maker.report(fault("attribute-expansion.yaml", key=key), value_spot)

    # ---- parameters ----

    def _axes(self, key: str, node: yaml.Node) -> Iterator[Axis]:
        if key == "grid":
            for name, _, values in self._document.pairs(node, "grid"):
                yield Axis((name,), tuple((value,) for value in self._values(name, values)))
        elif key == "zip":
            yield from self._zip(node)
        elif key == "csv":
            path = self._document.text(node, "csv")
            try:
                yield table(self._read(path))
            except (OSError, ValueError) as error:
                problem = getattr(error, "strerror", None) or error
                self._refuse(fault("sweep.csv", path=path, error=problem), self._document.spot(node))
        elif key == "repeat":
            text = self._document.text(node, "repeat")
            if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_JOBS:
                yield repeated(int(text))
            else:
                self._refuse(fault("sweep.repeat", value=text), self._document.spot(node))

    def _zip(self, node: yaml.Node) -> Iterator[Axis]:
        columns = {pair.key: self._values(pair.key, pair.node) for pair in self._document.pairs(node, "zip")}
        sizes = {name: len(values) for name, values in columns.items()}
        if len(set(sizes.values())) > 1:
            lengths = ", ".join(f"{name} {size}" for name, size in sizes.items())
            self._refuse(fault("sweep.zip", lengths=lengths), self._document.spot(node))
        elif columns:
            yield Axis(tuple(columns), tuple(zip(*columns.values(), strict=True)))

    def _values(self, name: str, node: yaml.Node) -> list[str]:
        """Return the values of a parameter: those of a list or of a range such as 0..4, or a single one."""
        document, spot = self._document, self._document.spot(node)
        if is_scalar(node) and not is_bare(node):
            try:
                return span(node.value) or [node.value]
            except ValueError as error:
                self._refuse(fault("sweep.range", error=error), spot)
                return [""]
        values = document.texts(node, f"each value of {name}") if kind(node) == "list" else []
        if not values:
            self._refuse(fault("sweep.values", name=name), spot)
        return values

    def _excluded(self, node: yaml.Node, names: Collection[str]) -> Iterator[Exclusion]:
        document = self._document
        for item in [node] if kind(node) == "map" else document.items(node, "exclude"):
            pattern: dict[str, Collection[str]] = {}
            for pair in document.pairs(item, "each item of exclude"):
                if pair.key in names:
                    pattern[pair.key] = document.texts(pair.node, pair.key)
                else:
                    self._unknown(pair, names, "key.parameter")
            yield pattern, document.spot(item)
