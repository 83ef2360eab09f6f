"""`gpusched check`: the jobs of a list and what is wrong with it, for people and for programs."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpusched.cli import main as front
from gpusched.common.errors import EXIT_USAGE
from tests.support.golden import golden
from tests.support.paths import TESTS

CASES = TESTS / "cases" / "files"
Capture = pytest.CaptureFixture[str]

LIST = """\
# the list for tonight
[name=prep gpus=0 time=10m] python prep.py --out data
#gpusched: mem=18G after=prep tag=seeds
python train.py --seed 1
[mem=30G prio=5 env.HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrSt] python train.py --seed 2 --gpu 3
python train.py --seed 3 > log 2>&1 &
[mem=40] python eval.py
"""
WRONG = """\
[gpsu=2] python a.py
[gpus=two name=b] python b.py
[name=c] python c.py 'x
[name=d] python d.py
[name=d] python e.py
"""
SWEEP = """\
defaults: {mem: 18G, tag: [sweep]}
jobs:
- command: python train.py --lr {lr} --name {name} '{print}'
  name: train-{lr}-{name}
  grid: {lr: [1e-3, 010], name: 1..2}
  exclude: {lr: 010, name: 2}
- run: |
    cd runs
    python eval.py
  after: [train-1e-3-1, sweep]
  tag:
"""


@pytest.fixture(autouse=True)
def _plain_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the person who runs the tests."""
    for name in list(os.environ):
        if name.startswith("GPUSCHED_") and name != "GPUSCHED_BLESS":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def check(*words: str) -> int:
    return front.run(["check", *words])


def document(capsys: Capture, *words: str) -> tuple[int, dict[str, Any]]:
    code = check(*words, "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


@pytest.mark.parametrize(
    ("name", "text", "code"), [("list.txt", LIST, 0), ("wrong.txt", WRONG, 2), ("s.yaml", SWEEP, 0)]
)
def test_a_list_is_shown_with_what_is_wrong(name: str, text: str, code: int, capsys: Capture) -> None:
    Path(name).write_text(text)
    assert check(name) == code
    out, err = capsys.readouterr()
    assert not err
    golden(f"check-{Path(name).stem}", out)


def test_it_makes_nothing(capsys: Capture) -> None:
    Path("list.txt").write_text(LIST)
    check("list.txt")
    assert os.listdir() == ["list.txt"]


def test_the_same_for_programs(capsys: Capture) -> None:
    Path("list.txt").write_text(LIST)
    code, found = document(capsys, "list.txt", "--retries", "2")
    assert (code, found["source"], found["accepted"]) == (0, "list.txt", True)
    assert [job["line"] for job in found["jobs"]] == [2, 4, 5, 6, 7]
    assert found["jobs"][2] == {
        "line": 5,
        "occurrence": 1,
        "command": "python train.py --seed 2 --gpu 3",
        "name": None,
        "tags": ["seeds"],
        "gpus": 1,
        "mem_bytes": 30 << 30,
        "learns_memory": False,
        "gpu_model": None,
        "alone": False,
        "time_limit_s": None,
        "retries": 2,
        "prio": 5,
        "cwd": None,
        "env": {"HF_TOKEN": "***"},
        "after": {"after": ["prep"]},
    }
    assert [(f["severity"], f["code"], f["line"], f["column"]) for f in found["findings"]] == [
        ("warning", "background", 6, 37),
        ("warning", "attribute-mem", 7, 2),
    ]


def test_a_list_that_would_be_refused_ends_with_2(capsys: Capture) -> None:
    Path("wrong.txt").write_text(WRONG)
    code, found = document(capsys, "wrong.txt")
    assert (code, found["accepted"]) == (EXIT_USAGE, False)
    assert [f["code"] for f in found["findings"]] == ["attribute-key", "attribute-value", "open-quote", "name-taken"]
    Path("empty.txt").write_text("# nothing\n")
    assert check("empty.txt") == EXIT_USAGE
    assert capsys.readouterr().out == "0 jobs: there is no command in it, and gpusched run takes nothing of it\n"


def test_what_waits_for_nothing_or_in_circles_is_found(capsys: Capture) -> None:
    Path("list.txt").write_text("[name=a after=b] x\n[name=b after=a] y\n[after=aa] z\n")
    assert check("list.txt") == EXIT_USAGE
    assert "list.txt:3: error: no job has the name or the tag aa; did you mean a?" in capsys.readouterr().out
    Path("list.txt").write_text("[name=a after=b] x\n[name=b after=a] y\n")
    assert check("list.txt") == EXIT_USAGE
    assert "these jobs wait for each other: a (line 1) -> b (line 2) -> a (line 1)" in capsys.readouterr().out


def test_a_command_with_parameters(capsys: Capture) -> None:
    assert check("-c", "[name=t-{n}] python t.py {n} {}", "-p", "n=1..2") == 0
    assert capsys.readouterr().out.splitlines() == [
        "LINE  ATTRIBUTES  COMMAND",
        "   1  name=t-1    python t.py 1 {}",
        "   1  name=t-2    python t.py 2 {}",
        "",
        "2 jobs",
    ]


def test_standard_input_is_read_to_its_end(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[gpus=2] a\nb 'c\n")))
    code, found = document(capsys, "-")
    assert (code, [job["gpus"] for job in found["jobs"]]) == (EXIT_USAGE, [2])
    assert found["source"] == "-"


def test_flags_change_the_judgement(capsys: Capture) -> None:
    Path("list.txt").write_text("CUDA_VISIBLE_DEVICES=1 python a.py --gpu 1\n")
    assert document(capsys, "list.txt")[0] == EXIT_USAGE
    code, found = document(capsys, "list.txt", "--force")
    assert (code, [f["severity"] for f in found["findings"]]) == (0, ["warning"])
    code, found = document(capsys, "list.txt", "--strip-gpu-env", "--gpus-per-job", "2")
    assert (code, found["jobs"][0]["command"], found["jobs"][0]["gpus"]) == (0, "python a.py --gpu 1", 2)


@pytest.mark.parametrize(
    ("text", "options", "found"),
    [
        ("[mem=auto] true\n[mem=auto tag=a] true\ntrue\n", "", "1:this job has its GPU alone"),
        ("[tag=a] true\ntrue\n[mem=3G] true\ntrue\n", "--mem auto", "2:these 2 jobs have each a GPU alone"),
        ("[tag=a] true\n[mem=3G] true\n", "--mem auto", ""),
        ("true\n", "--mem auto --gpus-per-job 0", ""),
    ],
)
def test_memory_to_be_learned_without_a_tag_is_warned_of(text: str, options: str, found: str, capsys: Capture) -> None:
    Path("list.txt").write_text(text)
    _, checked = document(capsys, "list.txt", *options.split())
    doubts = [each for each in checked["findings"] if each["code"] == "untagged"]
    assert [each["line"] for each in doubts] == ([int(found[0])] if found else [])
    assert all(found[2:] in each["message"] for each in doubts)


@pytest.mark.parametrize("words", [["--tag", "a", "true"], ["--tag", "a", "list.txt"], ["true"], ["list.txt"]])
def test_tags_of_a_submission_count_too(words: list[str], capsys: Capture) -> None:
    Path("list.txt").write_text("[mem=auto] true\n")
    assert front.run(["submit", "--no-start", "--mem", "auto", *words]) == 0
    assert ("without a tag" in capsys.readouterr().err) == ("--tag" not in words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Missing argument 'FILE' (or -c COMMAND)"),
        (["none.txt"], "none.txt: cannot be read: No such file or directory"),
        (["list.txt", "-c", "x"], "Either FILE (list.txt) or -c COMMAND, not both"),
        (["list.txt", "-p", "a=1"], "-p goes with a command"),
        (["--each", "a.csv"], "--each goes with a command"),
        (["-c", " "], "-c: the command is empty"),
        (["-c", "x", "-p", "a"], "-p a: a parameter is NAME=VALUE,VALUE"),
        (["-c", "x", "--each", "none.csv"], "--each none.csv: cannot be read"),
    ],
)
@pytest.mark.parametrize("verb", ["check", "run"])
def test_what_is_given_wrongly_is_a_usage_error(verb: str, words: list[str], says: str, capsys: Capture) -> None:
    Path("list.txt").write_text("true\n")
    assert front.run([verb, *words]) == EXIT_USAGE
    assert says in capsys.readouterr().err
    assert os.listdir() == ["list.txt"]


@pytest.mark.parametrize(
    ("name", "jobs", "codes"),
    [
        ("01-annotated.txt", 5, {"duplicate"}),
        ("03-continued.txt", 3, {"backslash-blank", "option-line"}),
        ("05-bom-crlf.txt", 3, set()),
        ("06-params.txt", 0, {"parameter-table"}),
        ("08-overrides.txt", 6, {"own-devices", "cpu-job"}),
        ("10-uses-assigned.txt", None, set()),
        ("12-background.txt", None, {"background", "backslash-at-end"}),
        ("14-setup-lines.txt", 2, {"setup-line", "shebang"}),
        ("16-one-fails.txt", 5, set()),
        ("52-longnames.txt", None, set()),
        ("54-secrets.txt", None, set()),
    ],
)
def test_the_cases(name: str, jobs: int | None, codes: set[str], capsys: Capture) -> None:
    """The same is found in a list and in a YAML job file of its lines."""
    code, found = document(capsys, str(CASES / name))
    if jobs is not None:
        assert len(found["jobs"]) == jobs
    assert {f["code"] for f in found["findings"]} - {"no-program"} == codes  # of the machine, not of the list
    assert code == (EXIT_USAGE if any(f["severity"] == "error" for f in found["findings"]) else 0)
    assert "hf_" not in json.dumps(found["jobs"]).replace("hf_transfer", "")
    texts = [job["command"] for job in found["jobs"]]
    if texts and "\ufffd" not in "".join(texts) and name != "54-secrets.txt":
        Path("a.yaml").write_text(json.dumps({"jobs": texts}))
        _, again = document(capsys, "a.yaml")
        assert [job["command"] for job in again["jobs"]] == texts


def test_what_a_whole_sweep_waits_for_in_vain_is_told_once(capsys: Capture) -> None:
    assert front.run(["check", "-c", "[after=prep] python train.py {n}", "-p", "n=1..50", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [finding["code"] for finding in found] == ["unknown-job"]


def test_programs_that_path_does_not_have_are_warned_of_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        "A=1 pyhton a.py",
        "pyhton b.py",
        "echo pyhton",
        "./own x",
        "$TOOL y",
        "for i in 1; do true; done",
        "f() { :; }",
    ]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    assert front.run(["check", "list.txt"]) == 0
    out = capsys.readouterr().out
    assert out.count("there is no program") == 1 and "list.txt:1: warning: there is no program pyhton on PATH" in out
    (tmp_path / "env.sh").write_text("")
    monkeypatch.setenv("GPUSCHED_SETUP", str(tmp_path / "env.sh"))
    assert front.run(["check", "list.txt"]) == 0
    assert "there is no program" not in capsys.readouterr().out
