"""Patterns with wildcards, by the rules of `glob`: what they name, and what a name has where they leave it open.

Knows no plan and no shard.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Sequence

from gpusched.common.natural_order import natural_key

_ESCAPED = re.compile(r"\[([*?[])\]")  # what glob.escape makes of a wildcard
_WILD = re.compile(r"\[!?\]?[^]]*\]|\*\*/|\*+|\?")


def has_wildcard(pattern: str) -> bool:
    return glob.has_magic(_ESCAPED.sub("", pattern))


def literal_of(pattern: str) -> str:
    """What is escaped in it as it is meant."""
    return _ESCAPED.sub(r"\1", pattern)


def left_open(pattern: str, path: str) -> tuple[str, ...] | None:
    """What this path, which the pattern names, has in the place of each wildcard; None where that cannot be told."""
    found = re.fullmatch("(.*)".join(map(re.escape, _WILD.split(os.path.normpath(pattern)))), path, re.DOTALL)
    return None if found is None else found.groups()


def filled(pattern: str, texts: Sequence[str]) -> str:
    """The path that has these texts in the place of the wildcards."""
    left = iter(texts)
    return os.path.normpath(_WILD.sub(lambda _: next(left), os.path.normpath(pattern)))


class Files:
    """Finds what patterns name. A directory is listed once, however many shards write into it."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def matching(self, pattern: str) -> list[str]:
        """The regular files of this pattern, in natural order; by the rules of `glob`."""
        directory, name = os.path.split(pattern)
        found: Iterable[str]
        if not glob.has_magic(pattern):
            found = [pattern]
        elif has_wildcard(directory) or "**" in name:
            found = glob.iglob(pattern, recursive=True)
        else:
            directory = literal_of(directory)
            found = [os.path.join(directory, one) for one in self._in(directory, name)]
        return sorted((os.path.normpath(path) for path in found if os.path.isfile(path)), key=natural_key)

    def near(self, pattern: str) -> list[str]:
        """The files in the directory of a pattern, in natural order, and then those of the working directory."""
        directory = os.path.dirname(pattern)
        places = [] if has_wildcard(directory) else [os.path.normpath(literal_of(directory))]
        return [
            path
            for place in dict.fromkeys([*places, os.getcwd()])
            for name in sorted(self._listed(place), key=natural_key)
            if os.path.isfile(path := os.path.join(place, name))
        ]

    def _listed(self, directory: str) -> list[str]:
        if directory not in self._names:
            try:
                self._names[directory] = os.listdir(directory or ".")
            except OSError:
                self._names[directory] = []
        return self._names[directory]

    def _in(self, directory: str, pattern: str) -> list[str]:
        # Most names lack what is literal in the pattern; seeing that costs little.
        plain = _ESCAPED.sub("*", pattern)
        literal = "" if "[" in plain else max(re.split(r"[*?]", plain), key=len)
        names = [name for name in self._listed(directory) if literal in name]
        hidden = pattern.startswith(".")
        return [name for name in fnmatch.filter(names, pattern) if hidden or not name.startswith(".")]
