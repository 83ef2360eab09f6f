"""Pools for tests: a worker and its items written on a box, a pool started there, its results read back."""

from __future__ import annotations

import json
import textwrap
from typing import Any

from tests.support.box import Box, Running, command_of

POOL = "-m gpusched.pool.coordinator"


def write_worker(box: Box, body: str, *, setup: str = "pass", **members: Any) -> None:
    """Write work.py with the class Work, whose methods are those of `body`; lines of import may stand before them."""
    lines = body.splitlines(keepends=True)
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    methods = "".join(line for line in lines if not line.startswith(("import ", "from ")))
    text = "".join(["import gpusched\n", *imports, "class Work(gpusched.Worker):\n"])
    text += "".join(f"    {name} = {value!r}\n" for name, value in members.items())
    text += "    def setup(self, device, settings):\n        self.device, self.settings = device, settings\n"
    text += f"        {setup}\n"
    (box.work / "work.py").write_text(text + textwrap.indent(methods, "    "))


def write_items(box: Box, count: int) -> None:
    (box.work / "items.txt").write_text("".join(f"{n}\n" for n in range(1, count + 1)))


def pool(box: Box, *options: str, worker: str = "work.py:Work", **environment: str) -> Running:
    """Start `gpusched pool` over items.txt, with its results in out."""
    words = ["pool", *filter(None, [worker]), "--items", "items.txt", "--output-dir", "out", *options]
    return box.start(*words, **environment)


def results(box: Box) -> list[dict[str, Any]]:
    return _lines(box, "results.jsonl")


def errors(box: Box) -> list[dict[str, Any]]:
    return _lines(box, "errors.jsonl")


def _lines(box: Box, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in box.read(f"out/{name}").splitlines()]


def pids(box: Box, words: str) -> list[int]:
    """The processes of this box that are a coordinator or a worker."""
    want = POOL if words == POOL else "-m gpusched.commands.worker"
    named = {pid: command_of(pid) for pid in box.processes()}
    return [pid for pid, command in named.items() if want in command and not command.startswith("sh ")]
