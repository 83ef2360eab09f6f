"""What must have one home only: cleaning, masking, replacing files, reading a safetensors header, parsing a size."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from tests.test_architecture import TREES

STREAMS = {"commands.merge.write.output"}  # files too large to be made in memory
DIRECTORIES = {"host.gpus.claims"}


def _calls(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in names


def cleans_text(node: ast.AST) -> bool:
    """A pattern with escapes or control characters, or a choice for each character by `isprintable`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return any(mark in node.value for mark in ("\x1b", r"\x1b", "\x7f", r"\x7f"))
    return isinstance(node, ast.IfExp) and ".isprintable()" in ast.unparse(node.test)


def masks_secrets(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.strip() == "***"


def renames(node: ast.AST) -> bool:
    return _calls(node, "os.rename", "os.replace", "shutil.move")


def reads_a_binary_length(node: ast.AST) -> bool:
    return _calls(node, "int.from_bytes", "struct.unpack", "struct.unpack_from", "struct.Struct")


def has_a_table_of_units(node: ast.AST) -> bool:
    if not isinstance(node, ast.Dict):
        return False
    keys = {key.value.lower() for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return any(units <= keys for units in ({"k", "m", "g"}, {"kb", "mb", "gb"}, {"kib", "mib", "gib"}))


@pytest.mark.parametrize(
    ("is_done", "home", "others"),
    [
        (cleans_text, "common.text", {"host.gpus.nvml", "commands.esd.write.plots"}),  # "?", as in a plot's font
        (masks_secrets, "common.text", set()),
        (
            renames,
            "common.files",
            STREAMS | DIRECTORIES,
        ),
        (
            reads_a_binary_length,
            "common.weights.safetensors_header",
            {"pool.messages"},
        ),  # frames
        (has_a_table_of_units, "common.quantities", set()),
    ],
)
def test_it_has_one_home(is_done: Callable[[ast.AST], bool], home: str, others: set[str]) -> None:
    homes = {name for name, tree in TREES.items() if any(map(is_done, ast.walk(tree)))}
    assert homes == {home} | others
