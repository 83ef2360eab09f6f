"""The documents of `--json`: each has its version, and its fields stand in the reference."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.command_line import Capture, call
from tests.support.paths import ROOT
from tests.support.sample import Sample9

USED = {"peak_memory_bytes", "peak_device_bytes", "mean_memory_bytes", "mean_utilisation", "energy_j"}  # "what it used"
WORD = re.compile(r"(\w+)")
CALLS = (
    "status",
    "explain 2",
    "logs 3",
    "wait 1",
    "history",
    "usage",
    "devices --simulate 2",
    "check list.txt",
    "run list.txt --simulate 2 --dry-run",
    "config",
    "submit --no-start true",
)


@pytest.mark.parametrize("words", CALLS)
def test_the_documents_of_the_verbs(words: str, dispatched: Sample9, capsys: Capture) -> None:
    (dispatched.home / "list.txt").write_text("true\n")
    document = json.loads(call(capsys, *WORD.sub(r"\1 --json", words, count=1).split()))
    assert document.pop("schema_version") == 1
    told = (ROOT / "docs/reference.md").read_text("utf-8").split("## JSON documents")[1].split("\n## ")[0]
    verb = "run --dry-run" if "--dry-run" in words else words.split()[0]
    (row,) = re.findall(rf"^\| `{verb}` \| (.*) \|$", told, re.MULTILINE)
    assert set(document) <= set(re.findall(r"`([\w]+)`", row))
    for name in ("attempts", "usage"):
        if document.get(name):
            assert set(document[name][0]) - USED <= set(re.findall(r"`([\w]+)`", row))
