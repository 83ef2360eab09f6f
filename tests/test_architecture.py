"""Which module may import what: design section 3 as data, compared with the syntax trees."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.support.paths import ROOT

ANYTHING = ("*",)


@dataclass(frozen=True)
class Row:
    """What the modules that match may import: inside gpusched, and beyond the standard library."""

    module: str
    inside: tuple[str, ...]
    beyond: tuple[str, ...] = ()


# The first row that matches counts. Names are without the leading "gpusched.".
TABLE = (
    Row("", ("api", "pool.pool", "pool.worker")),  # its names, when they are first used
    Row("__main__", ("cli.main",)),
    Row("common.weights.hub_headers", ("common.*",), ("huggingface_hub", "msgspec")),
    Row("common.item_files", ("common.*",), ("msgspec", "pyarrow")),
    Row("common.*", ("common.*",)),
    Row("core.*", ("core.*", "common.*")),
    Row("config.*", ("config.*", "core.*", "common.*"), ("yaml",)),
    Row("host.store*", ("host.store*", "core.model", "core.jobs.*", "common.errors", "common.digests")),
    Row("host.shepherd", ("host.attempts.shepherd",)),
    Row("host.nvml", ("host.gpus.nvml",)),
    Row("host.locks", ("common.files",)),
    Row("host.gpus.nvml", ("host.gpus.nvml_groups", "common.processes"), ("pynvml",)),
    Row("host.gpus.nvml_groups", ()),
    Row("host.gpus.claims", ("host.locks", "common.*")),
    Row("host.gpus.tickets", ("host.locks", "host.gpus.claims", "core.plan.fairness", "common.*")),
    Row("host.gpus.*", ("host.gpus.*", "core.model", "common.*"), ("msgspec",)),
    Row("host.attempts.attempt_dir", ()),
    Row("host.attempts.wire", ()),
    Row("host.attempts.fence", ("common.processes",)),
    Row("host.attempts.running_command", ("host.attempts.attempt_dir", "host.attempts.fence", "common.processes")),
    Row("host.attempts.shepherd", ("host.attempts.*", "common.processes")),
    Row("host.attempts.starter", ("", "host.attempts.attempt_dir", "host.attempts.wire")),
    Row("host.attempts.launcher", ("host.attempts.starter", "host.attempts.wire", "common.errors")),
    Row("host.attempts.setup", ("host.attempts.attempt_dir", "common.*")),
    Row("host.attempts.strays", ("host.attempts.attempt_dir", "common.processes")),
    Row(
        "host.attempts.reaper",
        ("host.attempts.attempt_dir", "host.attempts.strays", "host.locks", "core.model", "common.processes"),
    ),
    Row("host.queue.queue_dirs", ("host.gpus.claims", "host.locks", "common.*")),
    Row("host.queue.notices", ("host.queue.queue_dirs", "common.*"), ("apprise",)),
    Row("host.queue.job_files", ("host.queue.queue_dirs",)),
    Row("host.queue.part_records", ("core.model", "common.*")),
    Row("host.queue.interactive", ("host.*", "core.*", "common.*")),
    Row("host.queue.published", ("host.queue.queue_dirs", "core.plan.board", "common.files"), ("msgspec",)),
    Row("host.queue.textfile", ("host.queue.queue_dirs", "common.*")),
    Row("host.queue.samples", ("core.*", "common.*")),
    Row("host.queue.metrics", ("host.store*", "core.documents", "common.files")),
    Row("host.code.*", ("host.code.*", "host.locks", "core.model", "core.jobs.job", "common.*")),
    Row("host.attempts", ()),
    Row("host.queue", ()),
    Row("host", ()),
    Row(
        "lists.*", ("lists.*", "host.*", "config.*", "core.*", "common.*"), ("yaml", "tree_sitter", "tree_sitter_bash")
    ),
    Row("views.templates", ("common.*",), ("jinja2",)),
    Row("views.*", ("views.*", "core.*", "common.*"), ("rich",)),
    Row("dispatcher.files", ("", "dispatcher.*", "host.*", "core.*")),
    Row("dispatcher.*", ("dispatcher.*", "lists.*", "host.*", "config.*", "core.*", "common.*")),
    Row("operations.run.renewal", ("", "operations.*", "host.*", "config.*", "common.*")),
    Row(
        "operations.look.frame",
        ("operations.*", "host.*", "core.*", "common.*"),
        ("pyarrow", "pandas", "polars"),
    ),
    Row(
        "operations.*",
        ("operations.*", "dispatcher.*", "views.*", "lists.*", "host.*", "config.*", "core.*", "common.*"),
    ),
    Row("esd.layers_table", ("esd.*", "common.*"), ("pyarrow",)),
    Row(
        "shards.*",
        (
            *("shards.*", "operations.*", "dispatcher.*", "views.words"),
            *("lists.*", "host.*", "config.*", "core.*", "common.*"),
        ),
    ),
    Row("esd.report", ("esd.*", "views.*", "core.*", "common.*")),
    Row("esd.compare.*", ("esd.*", "views.html.charts", "common.*")),
    Row("esd.*", ("esd.*", "operations.*", "dispatcher.*", "lists.*", "host.*", "config.*", "core.*", "common.*")),
    Row("pool.messages", ("common.*",), ("msgspec",)),
    Row("pool.publication", ("common.*",), ("fsspec",)),
    Row(
        "pool.execution",
        ("pool.messages", "pool.options", "pool.publication", "pool.worker", "common.*"),
        ("msgspec",),
    ),
    Row("pool.items", ("pool.*", "host.store.*", "common.*"), ("msgspec",)),
    Row("pool.results", ("pool.messages", "pool.options", "pool.publication", "host.store.*", "common.*")),
    Row("pool.coordinator.peers", ("pool.messages", "host.store.*", "common.*"), ("msgspec",)),
    Row("pool.tuner.record", ("pool.options", "pool.tuner.search", "common.*"), ("msgspec",)),
    Row("pool.tuner.report", ("pool.tuner.*", "pool.estimate", "views.*", "core.*", "common.*")),
    Row("pool.tuner.settings_block", ("pool.config", "common.*"), ("ruamel",)),
    Row(
        "pool.*",
        (
            *("pool.*", "operations.*", "dispatcher.*", "views.words"),
            *("lists.*", "host.*", "config.*", "core.*", "common.*"),
        ),
        ("msgspec",),
    ),
    Row("cluster.transport", ("cluster.*",), ("ray",)),
    Row(
        "cluster.*",
        ("", "cluster.*", "operations.*", "dispatcher.*", "host.*", "config.*", "core.*", "common.*"),
        ("yaml",),
    ),
    Row(
        "tui.*",
        ("tui.*", "operations.*", "views.*", "config.*", "core.*", "common.*"),
        ("textual", "rich"),
    ),
    Row("web.gate", (), ("starlette",)),
    Row("web.server", ("web.*", "operations.*", "config.*", "common.*"), ("starlette", "uvicorn")),
    Row("web.*", ("web.*", "operations.*", "views.*", "core.*", "common.*")),
    Row(
        "api",
        (
            "shards.*",
            "pool.*",
            "esd.*",
            "operations.*",
            "dispatcher.*",
            "lists.*",
            "host.*",
            "config.*",
            "core.*",
            "common.*",
        ),
    ),
    Row(
        "cli.run.*",
        ("cli.*", "shards.*", "operations.*", "dispatcher.*", "views.*", "lists.*", "config.*", "core.*", "common.*"),
        ("click",),
    ),
    Row("cli.features.*", ANYTHING, ("click",)),
    Row(
        "cli.*",
        ("", "cli.*", "api", "esd.*", "shards.*", "tui.*", "web.*", "operations.*", "views.*", "config.*", "common.*"),
        ("click",),
    ),
    Row("commands.esd*", ("commands.esd*", "common.*", "esd.gpu_memory", "esd.model_record", "esd.options"), ANYTHING),
    Row(
        "commands.merge*",
        (
            "",
            "commands.merge*",
            "common.*",
            "shards.on_disk",
            "shards.merge_options",
            "shards.patterns",
            "shards.plan",
            "shards.split",
        ),
        ANYTHING,
    ),
    Row(
        "commands.worker*",
        ("commands.worker*", "common.*", "pool.execution", "pool.messages", "pool.options"),
        ANYTHING,
    ),
    Row(
        "commands.trial*",
        (
            *("commands.trial*", "common.*", "pool.execution", "pool.options", "pool.publication"),
            *("pool.coordinator.publisher", "pool.tuner.record", "pool.tuner.search"),
        ),
        ANYTHING,
    ),
    Row("commands.publish*", ("commands.publish*", "common.*", "pool.publication"), ANYTHING),
    Row("commands.simjob*", ("commands.simjob*", "common.*"), ANYTHING),
)

# Modules of the standard library that have one owner each.
OWNERS = {"sqlite3": ("host.store.connection", "host.store.migration"), "fcntl": ("host.locks",)}

# core/* gets a list of what it may use, since a list of what does I/O is never complete. Of random, only what is
# given its seed.
PURE = frozenset(
    {"__future__", "abc", "bisect", "collections", "contextlib", "dataclasses", "difflib", "enum"}
    | {
        "fractions",
        "functools",
        "graphlib",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "random",
        "re",
    }
    | {"shlex", "statistics", "string", "textwrap", "types", "typing", "unicodedata"}
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__", "breakpoint"})

# Not to be loaded by importing a module of the command line, only by running its command; but for what it takes to
# open a queue, in the verbs that all do.
HEAVY = ("rich", "yaml", "psutil", "pynvml", "sqlite3", "asyncio", "unittest", "tree_sitter")
OPENS_QUEUES = {"sqlite3"}


def modules() -> dict[str, Path]:
    """Every module of the distribution by its name without "gpusched."; the package itself is ""."""
    found: dict[str, Path] = {}
    for top, prefix in (("gpusched", ()), ("commands", ("commands",))):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = (*prefix, *path.relative_to(ROOT / top).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
TREES = {name: ast.parse(path.read_bytes(), str(path)) for name, path in MODULES.items()}


def imports(name: str, tree: ast.AST, *, is_package: bool = False) -> Iterator[str]:
    """Absolute dotted names of all that a module imports, in functions too."""
    package = ("gpusched." + name).rstrip(".").split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package[: len(package) - node.level + (1 if is_package else 0)]
                base = ".".join([*up, base] if base else up)
            for alias in node.names:
                yield f"{base}.{alias.name}" if is_module(base, alias.name) else base


def is_module(base: str, name: str) -> bool:
    """Whether `from base import name` means a module: base is a package and does not define the name."""
    room = base.removeprefix("gpusched").removeprefix(".")
    if base.split(".")[0] != "gpusched" or room not in MODULES or MODULES[room].name != "__init__.py":
        return False
    targets = (t for node in TREES[room].body if isinstance(node, ast.Assign) for t in node.targets)
    return name not in {t.id for t in targets if isinstance(t, ast.Name)}


def row_for(name: str) -> Row | None:
    stage = re.match(r"commands\.\w+", name)
    for row in TABLE:
        if fnmatchcase(name, row.module) or row.module == f"{name}.*":
            return row
    if stage:  # each stage keeps to its own folder, and may use any library that it needs
        return Row(name, (f"{stage[0]}*",), ANYTHING)
    return Row(name, ()) if name == "commands" else None


def allows(patterns: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name, p) or p == f"{name}.*" for p in patterns)


def faults(name: str, tree: ast.AST, *, is_package: bool = False) -> list[str]:
    """What a module imports against the table."""
    row = row_for(name)
    if row is None:
        return [f"gpusched.{name} is in no row of the table"]
    found = []
    for target in imports(name, tree, is_package=is_package):
        top = target.split(".")[0]
        inside = target.removeprefix("gpusched").removeprefix(".")
        if top == "gpusched":
            if inside and not allows(row.inside, inside):
                found.append(f"gpusched.{name} imports {target}")
            if inside.startswith("cli") and not name.startswith("cli") and name != "__main__":
                found.append(f"gpusched.{name} imports {target}, but nothing imports cli")
        elif top in OWNERS:
            if name not in OWNERS[top]:
                found.append(f"gpusched.{name} imports {target}, which is for {OWNERS[top]} alone")
        elif top in sys.stdlib_module_names:
            if name.split(".")[0] == "core" and top not in PURE:
                found.append(f"gpusched.{name} imports {target}, but core decides and touches nothing")
        elif not allows(row.beyond, top):
            found.append(f"gpusched.{name} imports {target}")
    return found


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_its_row_allows(name: str) -> None:
    assert faults(name, TREES[name], is_package=MODULES[name].name == "__init__.py") == []


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_is_for(name: str) -> None:
    assert (ast.get_docstring(TREES[name]) or "").strip(), f"{MODULES[name]} has no docstring"


@pytest.mark.parametrize("name", [name for name in MODULES if name.split(".")[0] == "core"])
def test_core_calls_nothing_that_does_io(name: str) -> None:
    called = {
        node.func.id for node in ast.walk(TREES[name]) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & IMPURE_CALLS


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("core.plan.planner", "import time"),
        ("core.plan.planner", "from os import path"),
        ("core.plan.planner", "from gpusched.host import store"),
        ("core.plan.planner", "from ...host.store import Store"),
        ("host.store", "import gpusched.dispatcher"),
        ("host.claims", "import sqlite3"),
        ("host.claims", "def f():\n    import fcntl"),
        ("views.terminal.live", "from gpusched.host.store import Store"),
        ("dispatcher", "import rich.live"),
        ("dispatcher", "import torch"),
        ("dispatcher", "from gpusched.cli.options import load"),
        ("config.settings", "import click"),
        ("commands.esd.main", "from gpusched import dispatcher"),
        ("commands.esd.main", "import gpusched.commands.merge"),
        ("nowhere", "import json"),
    ],
)
def test_the_check_sees_a_wrong_import(name: str, source: str) -> None:
    assert faults(name, ast.parse(source))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("core.plan.planner", "from gpusched.core.model import JobRow\nfrom . import model\nimport dataclasses"),
        ("host.store.connection", "import sqlite3, os, time"),
        ("cli.run.run", "import click\nfrom gpusched import dispatcher\nfrom gpusched.views.terminal import live"),
        ("commands.esd.main", "import torch\nfrom . import spectrum"),
        ("commands.simjob.main", "from gpusched.common import simulation"),
    ],
)
def test_the_check_lets_a_right_import_be(name: str, source: str) -> None:
    assert faults(name, ast.parse(source)) == []


def test_the_state_of_a_job_is_set_in_one_place() -> None:
    places = [
        name
        for name, path in MODULES.items()
        for _ in re.finditer(r"UPDATE\s+jobs\s+SET\s+state\b", path.read_text("utf-8"), re.IGNORECASE)
    ]
    assert places == ["host.store.transitions"]


@pytest.mark.parametrize("value", ["DeviceView", "Snapshot"])
def test_the_box_as_the_plan_sees_it_is_built_in_one_place(value: str) -> None:
    makers = [
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
        if (node.func.id if isinstance(node.func, ast.Name) else node.func.attr) == value
    ]
    assert makers == ["core.plan.observe"]


def test_the_front_door_imports_only_click_the_errors_and_what_cleans_them() -> None:
    tops = {name for node in TREES["cli.main"].body for name in imports("cli.main", ast.Module([node], []))}
    beyond = {name for name in tops if name.split(".")[0] not in sys.stdlib_module_names}
    assert beyond == {"click", "gpusched", "gpusched.common.errors", "gpusched.common.text"}


@pytest.mark.parametrize("name", [name for name in MODULES if name.split(".")[0] == "cli"])
def test_a_module_of_the_command_line_loads_only_what_all_its_calls_need(name: str) -> None:
    """`gpusched --help` loads less still: tests/cli/test_main.py."""
    code = f"import sys, gpusched.{name}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(done.stdout.split()) <= OPENS_QUEUES


def test_every_package_is_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    block = re.search(r"^packages = (\[.*?\])", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    listed = ast.literal_eval(block[1])
    on_disk = ["gpusched." + n if n else "gpusched" for n, p in MODULES.items() if p.name == "__init__.py"]
    assert sorted(listed) == sorted(on_disk)
