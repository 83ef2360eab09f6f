"""The shape that keeps the house liveable: sizes of functions, classes, modules and folders, and no import circle.

Size is counted in physical lines without the docstring.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.test_architecture import MODULES, TREES, imports

FUNCTION_LINES = 60
VERB_LINES = 30  # of a function in cli/, which only parses, calls and prints
CLASS_LINES = 200
CLASS_ATTRIBUTES = 15
MODULE_LINES = 400
FOLDER_FILES = 16
POSITIONAL_ARGUMENTS = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


def length(node: Function) -> int:
    """Return the lines of a function without its decorators and its docstring."""
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


def class_length(node: ast.ClassDef) -> int:
    """Return the lines of a class, its docstrings aside. A field counts as one line: a table of fields may be long."""
    return sum(length(item) + 1 if isinstance(item, Function) else 1 for item in node.body)


def functions(tree: ast.AST) -> Iterator[Function]:
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def attributes(function: Function) -> set[str]:
    """The attributes of `self` that a method sets."""
    targets: list[ast.expr] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For):
            targets.append(node.target)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            targets.append(node.optional_vars)
    flat: list[ast.expr] = []
    while targets:
        target = targets.pop()
        if isinstance(target, ast.Tuple | ast.List):
            targets += target.elts
        elif isinstance(target, ast.Starred):
            targets.append(target.value)
        else:
            flat.append(target)
    return {
        each.attr
        for each in flat
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
    }


def declared(node: ast.ClassDef) -> set[str]:
    """The attributes that the body of a class declares: fields of a dataclass, annotations, slots."""
    names = {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    for item in node.body:
        if isinstance(item, ast.Assign):
            names |= {target.id for target in item.targets if isinstance(target, ast.Name)}
    return names


def first_set_late(node: ast.ClassDef, classes_by_name: dict[str, ast.ClassDef]) -> set[str]:
    """The attributes that a method sets though neither the class, its bases nor their `__init__` has them."""
    made = declared(node)
    late: set[str] = set()
    for item in node.body:
        if isinstance(item, Function):
            if item.name in ("__init__", "__new__", "__post_init__"):
                made |= attributes(item)
            elif not any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in item.decorator_list):
                late |= attributes(item)
    for base in node.bases:
        name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
        if name in classes_by_name:
            parent = classes_by_name[name]
            made |= declared(parent)
            for item in parent.body:
                if isinstance(item, Function) and item.name == "__init__":
                    made |= attributes(item)
    return late - made


def graph() -> dict[str, set[str]]:
    """Which module imports which, in functions and for type checkers too."""
    arrows: dict[str, set[str]] = {}
    for name, tree in TREES.items():
        is_package = MODULES[name].name == "__init__.py"
        arrows[name] = set()
        for target in imports(name, tree, is_package=is_package):
            inside = target.removeprefix("gpusched").removeprefix(".")
            if target.split(".")[0] == "gpusched" and inside in MODULES and inside not in ("", name):
                arrows[name].add(inside)
    return arrows


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that reach each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    result: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in arrows[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            members = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(members) > 1:
                result.append(sorted(members))

    for name in arrows:
        if name not in index:
            visit(name)
    return result


CLASSES = {node.name: node for tree in TREES.values() for node in classes(tree)}


@pytest.mark.parametrize("name", MODULES)
def test_functions_classes_and_modules_are_small(name: str) -> None:
    tree, is_verb = TREES[name], name.split(".")[0] == "cli"
    limit = VERB_LINES if is_verb else FUNCTION_LINES
    long = {node.name: length(node) for node in functions(tree) if length(node) > limit}
    long |= {node.name: class_length(node) for node in classes(tree) if class_length(node) > CLASS_LINES}
    lines = MODULES[name].read_text("utf-8").count("\n")
    assert not long
    assert lines <= MODULE_LINES


@pytest.mark.parametrize("name", MODULES)
def test_a_class_has_few_attributes_and_makes_all_of_them_at_once(name: str) -> None:
    for node in classes(TREES[name]):
        init = next((item for item in node.body if isinstance(item, Function) and item.name == "__init__"), None)
        assert init is None or len(attributes(init)) <= CLASS_ATTRIBUTES, node.name
        assert not first_set_late(node, CLASSES), node.name


@pytest.mark.parametrize("name", MODULES)
def test_a_call_names_its_arguments_where_there_are_many(name: str) -> None:
    many = [
        f"line {node.lineno}: {len(node.args)}"
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Call)
        and len(node.args) > POSITIONAL_ARGUMENTS
        and not (isinstance(node.func, ast.Attribute) and node.func.attr in ("execute", "join"))
    ]
    assert not many


def test_no_folder_is_crowded() -> None:
    files = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py")
    assert {str(folder.relative_to(ROOT)): n for folder, n in files.items() if n > FOLDER_FILES} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(graph()) == []


def test_the_search_for_circles_finds_one() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_the_search_for_late_attributes_finds_one() -> None:
    source = "class A:\n def __init__(self): self.a = 1\n def f(self): self.a, self.b = 2, 3\n"
    (node,) = classes(ast.parse(source))
    assert first_set_late(node, {}) == {"b"}


@pytest.mark.parametrize("name", ["DeviceView", "Snapshot"])
def test_the_view_of_the_box_is_built_in_one_place(name: str) -> None:
    places: dict[str, int] = defaultdict(int)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                places[module] += 1
    assert dict(places) == {"core.plan.observe": 1}


def test_the_tests_build_devices_jobs_and_attempts_in_one_place() -> None:
    nouns = {"Device", "DeviceView", "Attempt", "Job", "AttemptRow", "JobRow"}
    places: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in nouns:
                    places[str(path.relative_to(ROOT))].add(name)
    assert dict(places) == {"tests/support/build.py": nouns}


def test_the_files_of_a_room_are_tested_in_the_folder_of_its_name() -> None:
    rooms = {path.name for path in (ROOT / "gpusched").iterdir() if (path / "__init__.py").exists()} | {"commands"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.glob("**/test_*.py"))}
    assert rooms - folders == set()
    assert folders - rooms == {"docs", "e2e"}


def test_paths_are_of_this_tree() -> None:
    assert Path(MODULES["core.model"]).is_relative_to(ROOT)
