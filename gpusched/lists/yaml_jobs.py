"""Parse a YAML job file: `defaults:`, and `jobs:` of commands, of maps with attributes, and of sweeps.

Opens no file: a function that reads a sweep's table is an argument. Every value is text: 010 stays 010, no stays no.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpusched.config.yaml_text import is_scalar, kind
from gpusched.lists.attributes import ENV, KEYS, key_fault
from gpusched.lists.finding_table import fault, suggest
from gpusched.lists.joblist import JobFile
from gpusched.lists.maker import ListEntry, Maker, Spot, StatedAttributes
from gpusched.lists.parameters import Axis, expand, table
from gpusched.lists.yaml_nodes import Document, Pair, is_bare

if TYPE_CHECKING:
    import yaml

Exclusion = tuple[Mapping[str, Collection[str]], Spot]

_TOP = ("defaults", "jobs")
_COMMANDS = ("command", "run")
_AXES = ("csv", "zip", "grid", "repeat")  # the last one changes fastest
_SWEEP = (*_AXES, "exclude")
_ATTRIBUTES = (*KEYS, "env")
_LISTS = ("tag", "after", "after-any", "after-failed", "after-ended")


def parse(data: bytes, read: Callable[[str], bytes], **options: Any) -> JobFile:
    """Parse a job file. `read` returns the bytes of a file that it names, or raises OSError; `options` as for Maker."""
    maker = Maker(**options)
    _YamlReader(data, read, maker).read_file()
    return maker.take(complete=data.endswith(b"\n"))


class _YamlReader(Document):
    """Reads the nodes of a file and passes its jobs to the maker."""

    def __init__(self, data: bytes, read: Callable[[str], bytes], maker: Maker) -> None:
        super().__init__(data, maker)
        self._read = read
        self._defaults: dict[str, StatedAttributes] = {}

    def _unknown(self, pair: Pair, keys: Collection[str], name: str = "key") -> None:
        self.refuse(name, pair.spot, key=pair.key, suggestion=suggest(pair.key, keys), keys=", ".join(keys))

    # ---- the file ----

    def read_file(self) -> None:
        root = self.root()
        if root is None or is_bare(root):
            return
        parts: dict[str, Pair] = {}
        for pair in self.pairs(root, "a job file"):
            parts[pair.key] = pair
            if pair.key not in _TOP:
                self._unknown(pair, _TOP)
        if "defaults" in parts:
            self._set_defaults(parts["defaults"].node)
        if "jobs" in parts:
            for node in self.items(parts["jobs"].node, "jobs"):
                self._job(node)
        elif not self.faults:
            self.refuse("shape.no-jobs", self.spot(root))

    def _set_defaults(self, node: yaml.Node) -> None:
        if is_bare(node):
            return
        pairs = []
        for pair in self.pairs(node, "defaults"):
            if pair.key in (*_COMMANDS, *_SWEEP, "name"):
                self.refuse("key.one-job", pair.spot, key=pair.key)
            else:
                pairs.append(pair)
        self._defaults = self._attributes(pairs, {})

    def _job(self, node: yaml.Node) -> None:
        before = self.faults
        if is_scalar(node):
            attributes = list(self._defaults.values())
            entry = ListEntry(node.value, self.spot(node), attributes, block=True)
        else:
            entry = self._entry(node)
        if self.faults == before:
            self.maker.add(entry)

    def _entry(self, node: yaml.Node) -> ListEntry:
        spot = self.spot(node)
        pairs = {pair.key: pair for pair in self.pairs(node, "a job")}
        attributes = self._attributes([p for p in pairs.values() if p.key not in (*_COMMANDS, *_SWEEP)], self._defaults)
        commands = [key for key in _COMMANDS if key in pairs]
        command = ""
        if len(commands) == 1:
            text = pairs[commands[0]].node
            command, spot = self.text(text, commands[0]), self.spot(text)
        elif kind(node) == "map":
            self.refuse("shape.command", spot)
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
        for pair in pairs:
            if pair.key != "env":
                self._state(attributes, pair)
            elif not is_bare(pair.node):
                for each in self.pairs(pair.node, "env"):
                    self._state(attributes, each._replace(key=ENV + each.key))
        return attributes

    def _state(self, attributes: dict[str, StatedAttributes], pair: Pair) -> None:
        key, spot, node = pair
        problem = key_fault(key)
        if problem is not None and problem.code == "attribute-key" and not key.startswith(ENV):
            self._unknown(pair, (*_COMMANDS, *_ATTRIBUTES, *_SWEEP))
        elif problem is not None:
            self.faults += 1
            self.maker.report(problem, spot)
        elif is_bare(node):
            attributes.pop(key, None)
        else:
            texts = self.texts(node, key) if key in _LISTS else [self.text(node, key)]
            attributes[key] = StatedAttributes(key, ",".join(texts), self.spot(node))

    # ---- parameters ----

    def _axes(self, key: str, node: yaml.Node) -> Iterator[Axis]:
        if key == "grid":
            for name, _, values in self.pairs(node, "grid"):
                yield Axis((name,), tuple((value,) for value in self._values(name, values)))
        elif key == "zip":
            yield from self._zip(node)
        elif key == "csv":
            path, notes = self.text(node, "csv"), list[str]()
            try:
                yield table(self._read(path), notes)
            except (OSError, ValueError) as error:
                problem = getattr(error, "strerror", None) or error
                self.refuse("sweep.csv", self.spot(node), path=path, error=problem)
            for note in notes:
                self.maker.report(fault("sweep.row", path=path, note=note), Spot(self.spot(node).line))
        elif key == "repeat":
            text = self.text(node, "repeat")
            if re.fullmatch("[1-9][0-9]{0,6}", text):
                yield Axis(("repeat",), tuple((str(n),) for n in range(1, int(text) + 1)))
            else:
                self.refuse("sweep.repeat", self.spot(node), value=text)

    def _zip(self, node: yaml.Node) -> Iterator[Axis]:
        columns = {pair.key: self._values(pair.key, pair.node) for pair in self.pairs(node, "zip")}
        if len({len(values) for values in columns.values()}) > 1:
            lengths = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
            self.refuse("sweep.zip", self.spot(node), lengths=lengths)
        elif columns:
            yield Axis(tuple(columns), tuple(zip(*columns.values(), strict=True)))

    def _values(self, name: str, node: yaml.Node) -> list[str]:
        """Return the values of a parameter: a single one or those of a list, with ranges such as 0..4 filled in."""
        nodes = node.value if kind(node) == "list" else [node] if is_scalar(node) and not is_bare(node) else []
        values = [value for each in nodes for value in self._expand(name, each)]
        if not values:
            self.refuse("sweep.values", self.spot(node), name=name)
        return values

    def _expand(self, name: str, node: yaml.Node) -> list[str]:
        """Return the values of a range that stands without quotes, or the text itself."""
        text = self.text(node, f"each value of {name}")
        if getattr(node, "style", None):  # quotes, or a block
            return [text]
        try:
            return expand(text, "write {}, or put the text in quotes")
        except ValueError as error:
            self.refuse("sweep.range", self.spot(node), error=error)
            return [""]

    def _excluded(self, node: yaml.Node, names: Collection[str]) -> Iterator[Exclusion]:
        for item in [node] if kind(node) == "map" else self.items(node, "exclude"):
            pattern: dict[str, Collection[str]] = {}
            for pair in self.pairs(item, "each item of exclude"):
                if pair.key in names:
                    pattern[pair.key] = self.texts(pair.node, pair.key)
                else:
                    self._unknown(pair, names, "key.parameter")
            yield pattern, self.spot(item)
