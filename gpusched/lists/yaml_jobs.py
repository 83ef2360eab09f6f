"""A YAML job file -> jobs: `defaults:`, and `jobs:` of commands, of maps with attributes, and of sweeps.

Opens no file: the reading of a sweep's table is injected. Every value is text: 010 stays 010, and no stays no.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from gpusched.common.quantities import nearest
from gpusched.lists.attributes import ENV, KEYS, parse_value, wrong_key, wrong_value
from gpusched.lists.joblist import JobFile
from gpusched.lists.lint import Fault
from gpusched.lists.maker import ListEntry, Maker, Spot, StatedAttributes
from gpusched.lists.sweep import MAX_JOBS, Axis, repeated, span, table
from gpusched.lists.yaml_nodes import Document, Pair, is_bare, is_scalar, kind

if TYPE_CHECKING:
    import yaml

Exclusion = tuple[Mapping[str, Collection[str]], Spot]

_TOP = ("defaults", "jobs")
_COMMANDS = ("command", "run")
_AXES = ("csv", "zip", "grid", "repeat")  # the last one changes fastest
_SWEEP = (*_AXES, "exclude")
_ATTRIBUTES = (*KEYS, "env", "tags")
_LISTS = ("tag", "after", "after-any", "after-failed", "after-ended")


def parse(
    data: bytes,
    read: Callable[[str], bytes],
    *,
    force: bool = False,
    strip_gpu_env: bool = False,
    gpus: int = 1,
) -> JobFile:
    """Read a job file. `read` gives the bytes of a file that it names, or raises OSError."""
    maker = Maker(force=force, strip_gpu_env=strip_gpu_env, gpus=gpus)
    _Reader(data, read, maker).top()
    return maker.finish(complete=data.endswith(b"\n"))


class _Reader:
    """Goes through the nodes of a file and hands its jobs to the maker."""

    def __init__(self, data: bytes, read: Callable[[str], bytes], maker: Maker) -> None:
        self._document = Document(data, self._wrong)
        self._read = read
        self._maker = maker
        self._faults = 0
        self._defaults: dict[str, StatedAttributes] = {}

    def _wrong(self, code: str, message: str, spot: Spot, hint: str = "") -> None:
        self._faults += 1
        self._maker.report(Fault(code, "error", 0, message, hint, False), spot)

    def _unknown(self, pair: Pair, known: Collection[str], hint: str = "") -> None:
        meant = nearest(pair.key, known)
        advice = f"; did you mean {meant}?" if meant else ""
        self._wrong("key", f"there is no key {pair.key!r} here{advice}", pair.spot, hint or _those(known))

    # ---- the file ----

    def top(self) -> None:
        root = self._document.root()
        if root is None or is_bare(root):
            return
        parts: dict[str, Pair] = {}
        for pair in self._document.pairs(root, "a job file"):
            parts[pair.key] = pair
            if pair.key not in _TOP:
                below = pair.key in (*_COMMANDS, *_SWEEP, *_ATTRIBUTES)
                self._unknown(pair, _TOP, "it belongs to a job: a list item below jobs:" if below else "")
        if "defaults" in parts:
            self._set_defaults(parts["defaults"].node)
        if "jobs" in parts:
            for node in self._document.items(parts["jobs"].node, "jobs"):
                self._job(node)
        elif not self._faults:
            self._wrong("shape", "this file has no jobs:", self._document.spot(root), "jobs: and a list of commands")

    def _set_defaults(self, node: yaml.Node) -> None:
        if is_bare(node):
            return
        pairs = []
        for pair in self._document.pairs(node, "defaults"):
            if pair.key in (*_COMMANDS, *_SWEEP, "name"):
                self._wrong("key", f"{pair.key} is for one job, and defaults are for all", pair.spot)
            else:
                pairs.append(pair)
        self._defaults = self._attributes(pairs, {})
        for key, value, spot in self._defaults.values():
            if "{" not in value:
                try:
                    parse_value(key, value.encode())
                except ValueError as error:
                    self._maker.report(wrong_value(key, value.encode(), error, 0), spot)

    def _job(self, node: yaml.Node) -> None:
        before = self._faults
        if is_scalar(node):
            stated = list(self._defaults.values())
            entry = ListEntry(node.value, self._document.spot(node), stated, block=True)
        else:
            entry = self._entry(node)
        if self._faults == before:
            self._maker.add(entry)

    def _entry(self, node: yaml.Node) -> ListEntry:
        document, spot = self._document, self._document.spot(node)
        pairs = {pair.key: pair for pair in document.pairs(node, "a job")}
        stated = self._attributes([p for p in pairs.values() if p.key not in (*_COMMANDS, *_SWEEP)], self._defaults)
        commands = [key for key in _COMMANDS if key in pairs]
        command = ""
        if len(commands) == 1:
            found = pairs[commands[0]].node
            command, spot = document.text(found, commands[0]), document.spot(found)
        elif kind(node) == "map":
            what = "a job has command: or run:, not both" if commands else "this job has no command:"
            self._wrong("shape", what, spot)
        axes = [axis for key in _AXES if key in pairs for axis in self._axes(key, pairs[key].node)]
        names = [name for axis in axes for name in axis.names]
        excluded = list(self._excluded(pairs["exclude"].node, names)) if "exclude" in pairs else []
        return ListEntry(command, spot, list(stated.values()), axes, excluded)

    # ---- attributes ----

    def _attributes(
        self, pairs: Iterable[Pair], defaults: Mapping[str, StatedAttributes]
    ) -> dict[str, StatedAttributes]:
        """What a map states, over the defaults; where nothing stands behind a key, the default is taken back."""
        stated, own = dict(defaults), set()
        for pair in pairs:
            if pair.key == "env":
                inner = self._document.pairs(pair.node, "env") if not is_bare(pair.node) else ()
                found = [each._replace(key=ENV + each.key) for each in inner]
            else:
                key = pair.key if pair.key.startswith(ENV) else pair.key.replace("_", "-")
                found = [pair._replace(key="tag" if key == "tags" else key)]
            for each in found:
                if each.key in own:
                    self._wrong("key-twice", f"{each.key} is set here already", each.spot)
                own.add(each.key)
                self._state(stated, each)
        return stated

    def _state(self, stated: dict[str, StatedAttributes], pair: Pair) -> None:
        key, spot, node = pair
        wrong = wrong_key(key)
        if wrong is not None and wrong[0] == "attribute-key" and not key.startswith(ENV):
            self._unknown(pair, (*_COMMANDS, *_ATTRIBUTES, *_SWEEP))
        elif wrong is not None:
            self._wrong(wrong[0], wrong[1], spot)
        elif is_bare(node):
            stated.pop(key, None)
        else:
            texts = self._document.texts(node, key) if key in _LISTS else [self._document.text(node, key)]
            text, place = ",".join(texts), self._document.spot(node)
            stated[key] = StatedAttributes(key, text, place)
            if (key == "cwd" and text.startswith("~")) or ("$" in text and key not in _LISTS):
                message = f"nothing is expanded in {key}: the characters themselves are meant?"
                fault = Fault(
                    "attribute-expansion", "warning", 0, message, "the command's own $X is the shell's", False
                )
                self._maker.report(fault, place)

    # ---- parameters ----

    def _axes(self, key: str, node: yaml.Node) -> Iterator[Axis]:
        document, spot = self._document, self._document.spot(node)
        if key == "grid":
            for name, _, values in document.pairs(node, "grid"):
                yield Axis((name,), tuple((value,) for value in self._values(name, values)))
        elif key == "zip":
            columns = {pair.key: self._values(pair.key, pair.node) for pair in document.pairs(node, "zip")}
            sizes = {name: len(values) for name, values in columns.items()}
            if len(set(sizes.values())) > 1:
                shown = ", ".join(f"{name} {size}" for name, size in sizes.items())
                self._wrong("sweep", f"the lists of zip differ in length: {shown}", spot)
            elif columns:
                yield Axis(tuple(columns), tuple(zip(*columns.values(), strict=True)))
        elif key == "csv":
            path = document.text(node, "csv")
            try:
                yield table(self._read(path))
            except OSError as error:
                self._wrong("sweep", f"cannot be read: {error.strerror or error}", spot, "relative to this file")
            except ValueError as error:
                self._wrong("sweep", f"this table cannot be used: {error}", spot)
        elif key == "repeat":
            text = document.text(node, "repeat")
            if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_JOBS:
                yield repeated(int(text))
            else:
                self._wrong("sweep", f"repeat is {text!r}, but must be a whole number, at least 1", spot)

    def _values(self, name: str, node: yaml.Node) -> list[str]:
        """The values of a parameter: a list, or a range such as 0..4, or one alone."""
        document, spot = self._document, self._document.spot(node)
        if is_scalar(node) and not is_bare(node):
            try:
                found = span(node.value)
            except ValueError as error:
                self._wrong("sweep", str(error), spot)
                found = [""]
            return [node.value] if found is None else found
        values = document.texts(node, f"each value of {name}") if kind(node) == "list" else []
        if not values:
            self._wrong("sweep", f"{name} has no values", spot, "a list, [1e-3, 1e-4], or a range, 0..4")
        return values

    def _excluded(self, node: yaml.Node, names: Collection[str]) -> Iterator[Exclusion]:
        document = self._document
        for item in [node] if kind(node) == "map" else document.items(node, "exclude"):
            pattern: dict[str, Collection[str]] = {}
            for pair in document.pairs(item, "each item of exclude"):
                if pair.key in names:
                    pattern[pair.key] = document.texts(pair.node, pair.key)
                else:
                    meant = nearest(pair.key, names)
                    advice = f"; did you mean {meant}?" if meant else ""
                    message = f"{pair.key} is no parameter of this sweep{advice}"
                    self._wrong("key", message, pair.spot, _those(names))
            yield pattern, document.spot(item)


def _those(known: Collection[str]) -> str:
    return f"there are: {', '.join(known)}" if known else ""
