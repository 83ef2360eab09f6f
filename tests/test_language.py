"""The language of the code: docstrings that can be understood at first reading, and one name for one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

# Rooms whose docstrings, names and messages are checked; class names are checked everywhere.
ROOMS_DONE = ("gpusched/", "commands/")

# Names of classes in rooms that are not done, which stand for more than one thing; the set only shrinks.
NOT_UNIQUE_YET: frozenset[str] = frozenset()

FILES = sorted(path for room in ("gpusched", "commands") for path in (ROOT / room).rglob("*.py"))
CHECKED = [path for path in FILES if path.relative_to(ROOT).as_posix().startswith(ROOMS_DONE)]
# A docstring starts with a verb or a noun phrase: "Return True if …", never "Whether …".
RELATIVE = re.compile(r"(What|Whether|How|Which|Who|Whose|Where|Why|When|Those|Of)\b")
TOLD = re.compile(r"(?<![A-Za-z])told(?![A-Za-z])", re.IGNORECASE)
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def definitions(path: Path) -> Iterator[Definition]:
    for node in ast.walk(tree(path)):
        if isinstance(node, Definition):
            yield node


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every name that a module binds or uses."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.lineno, node.arg or ""
        elif isinstance(node, ast.alias):
            yield node.lineno, node.asname or node.name


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every string constant except docstrings."""
    docstrings = {id(node.body[0].value) for node in definitions(path) if ast.get_docstring(node, clean=False)}  # type: ignore[attr-defined]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", CHECKED, ids=ids)
def test_no_docstring_starts_with_a_relative_word(path: Path) -> None:
    starts = [(getattr(node, "lineno", 1), ast.get_docstring(node) or "") for node in definitions(path)]
    assert not [(line, text.splitlines()[0]) for line, text in starts if RELATIVE.match(text)]


@pytest.mark.parametrize("path", CHECKED, ids=ids)
def test_no_name_and_no_text_says_told(path: Path) -> None:
    assert not [(line, text) for line, text in (*names(path), *texts(path)) if TOLD.search(text)]


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for node in definitions(path):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{ids(path)}:{node.lineno}")
    assert not {name: at for name, at in places.items() if len(at) > 1 and name not in NOT_UNIQUE_YET}
