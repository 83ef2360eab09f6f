"""The rooms of the stage: imports go down only, and in no circle."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.paths import ROOT

STAGE = ROOT / "commands" / "esd"
PREFIX = "gpusched.commands.esd"
# From above; "" is the folder itself.
FLOORS = ("", "write", "fit", "solve", "find", "adapt", "dequantise", "weights", "read")
MODULES = {".".join(path.relative_to(STAGE).with_suffix("").parts): path for path in STAGE.rglob("*.py")}


def imports(name: str, path: Path) -> set[str]:
    """Return the modules of the stage that a module imports, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = ["", *name.split(".")[:-1]]
            base = [part for part in folder[: len(folder) - node.level + 1] if part]
            target = ".".join([*base, *(node.module.split(".") if node.module else ())])
            found |= {target} if target in MODULES else {f"{target}.{alias.name}".strip(".") for alias in node.names}
    return found & set(MODULES)


def floor(name: str) -> int:
    return FLOORS.index(name.rpartition(".")[0])


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_go_down(name: str) -> None:
    path = MODULES[name]
    assert {other for other in imports(name, path) if floor(other) < floor(name)} == set()
    assert f"{PREFIX}." not in path.read_text().replace(f"python -m {PREFIX}", ""), "imports are relative"


def test_there_is_no_circle() -> None:
    order = list(TopologicalSorter({name: imports(name, path) for name, path in MODULES.items()}).static_order())
    assert order.index("read.tensors") < order.index("find.open_model") < order.index("stage")
    assert {floor(name) for name in order} == set(range(len(FLOORS)))
