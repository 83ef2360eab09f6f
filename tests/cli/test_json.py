"""The documents that verbs print with --json: one each, with a version, and as the reference lists them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest

from gpusched.cli import main as front
from tests.support.command_line import Capture
from tests.support.paths import ROOT
from tests.support.sample import PID, Sample9, dispatched_by


def document(capsys: Capture, *words: str, code: int = 0) -> dict[str, Any]:
    assert front.run([*words, "--json"]) == code
    shown = json.loads(capsys.readouterr().out)
    assert shown.pop("schema_version") == 1
    return dict(shown)


def test_cancel_says_what_has_happened_to_each_job(sample: Sample9, rung: list[str], capsys: Capture) -> None:
    assert document(capsys, "cancel", "4-6", code=1) == {
        "queue": sample.place.path,
        "jobs": [
            {"id": 4, "text": "has failed before: nothing to cancel", "refused": True},
            {"id": 5, "text": "cancelled", "refused": False},
            {"id": 6, "text": "cancelled", "refused": False},
        ],
        "notes": [],
    }


def test_hold_release_and_requeue_say_the_same(sample: Sample9, rung: list[str], capsys: Capture) -> None:
    held = document(capsys, "hold", "5", "4", code=1)["jobs"]
    assert [(job["id"], job["refused"]) for job in held] == [(5, False), (4, True)]
    assert document(capsys, "release", "5")["jobs"] == [{"id": 5, "text": "released", "refused": False}]
    requeued = document(capsys, "requeue", "--failed")
    assert requeued["jobs"] == [{"id": n, "text": "queued again", "refused": False} for n in (2, 4)]
    assert requeued["notes"][0].startswith("no dispatcher works on this queue; to run what is queued: gpusched run")
    assert document(capsys, "hold", "--tag", "none") == {
        "queue": sample.place.path,
        "jobs": [],
        "notes": ["no job was held"],
    }


def test_stop_says_who_was_asked(sample: Sample9, capsys: Capture) -> None:
    stopped = document(capsys, "stop")
    assert "there is nothing to stop" in stopped.pop("notes")[0]
    assert stopped == {"queue": sample.place.path, "pid": None, "running": 1, "answer": "nobody", "jobs": []}


def test_explain_has_each_attempt_and_advice(dispatched: Sample9, capsys: Capture) -> None:
    shown = document(capsys, "explain", "2")
    assert shown["queue"] == dispatched.place.path and shown["job"]["state"] == "failed"
    assert [each["number"] for each in shown["attempts"]] == [1, 2]
    assert shown["attempts"][0]["log"] == f"{dispatched.place.path}/logs/0002.1-python.log"
    failed = document(capsys, "explain", "4")["attempts"][-1]
    assert failed["outcome"] == "exited" and failed["exit_code"] == 1 and failed["cause"] == "gpu_oom"
    assert failed["hint"].startswith("the next try goes to a GPU with more free memory")
    assert document(capsys, "explain", "5")["current"][0].startswith("why ")


def test_explain_of_a_queue_has_reasons_and_failures(dispatched: Sample9, capsys: Capture) -> None:
    shown = document(capsys, "explain")
    assert shown["path"] == dispatched.place.path and shown["dispatcher"] == PID and "jobs" not in shown
    waiting = [job for group in shown["waiting"] for job in group["jobs"]]
    assert waiting == [5, 6, 7] and all(group["why"] for group in shown["waiting"])
    assert [group["jobs"] for group in shown["failed"]] == [[2], [4]]
    assert {"state", "why"} <= shown["devices"][0].keys()


def test_logs_has_where_the_log_lies(sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    log = sample.log(2, 2, b"one\ntwo\n")
    shown = document(capsys, "logs", "2")
    assert (shown["job"], shown["attempt"], shown["bytes"], shown["is_complete"]) == (2, 2, 8, True)
    assert Path(shown["path"]) == log and shown["outcome"] == "exited"
    sample.log(3, 1, b"begun\n")
    dispatched_by(monkeypatch, PID)
    assert document(capsys, "logs", "3")["is_complete"] is False
    assert front.run(["logs", "2", "--json", "-n", "3"]) == 2
    assert "--json prints no lines of the log" in capsys.readouterr().err


@pytest.mark.usefixtures("plain_home")
@pytest.mark.parametrize("words", [["config"], ["check", "-c", "true"], ["run", "-c", "true", "--dry-run"]])
def test_every_document_has_a_version(words: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCHED_SIMULATE", "1")
    assert document(capsys, *words)


def test_the_reference_lists_every_verb_that_prints_json() -> None:
    section = (ROOT / "docs/reference.md").read_text("utf-8").split("\n## JSON\n")[1].split("\n## ")[0]
    listed = {
        word for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for word in re.findall(r"`(\w+)", row)
    }
    context = click.Context(front.cli)
    commands = {name: front.cli.get_command(context, name) for name in front.COMMANDS}
    assert listed == {
        name for name, each in commands.items() if each is not None and any("--json" in p.opts for p in each.params)
    }
