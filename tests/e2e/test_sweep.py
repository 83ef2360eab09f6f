"""Job files in YAML and commands with parameters, run to their end and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.lists.submit import Sweep
from tests.support.box import UNTIL_GO, Box

pytestmark = pytest.mark.slow


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as box:
        yield box


def test_a_job_file_runs_and_goes_on(box: Box) -> None:
    (box.work / "models.csv").write_text("model,rev\nmeta/llama 3,main\nopt,v1\n")
    text = """\
        jobs:
        - command: printf '<%s>' {model} "{n}" '{n}' {} ${X}
          csv: models.csv
          grid: {n: [1e-3, "it's $HOME"]}
        - run: |
            cd /
            pwd
            cat <<EOF
            it's
            EOF
    """
    box.write(*(line.removeprefix("        ") for line in text.rstrip().split("\n")), name="s.yaml")
    assert box.gpusched("run", "s.yaml").code == 0
    assert [row.said() for row in box.jobs("s")] == [
        "<meta/llama 3><1e-3><1e-3><{}>",
        "<meta/llama 3><it's $HOME><it's $HOME><{}>",
        "<opt><1e-3><1e-3><{}>",
        "<opt><it's $HOME><it's $HOME><{}>",
        "/\nit's\n",
    ]
    (box.work / "models.csv").write_text("model,rev\nopt,v1\nbert,v2\n")
    assert box.gpusched("run", "s.yaml").code == 0
    rows = box.jobs("s")
    assert [len(row.attempts) for row in rows] == [1] * 7
    assert sorted(row.said() for row in rows)[0] == "/\nit's\n"


def test_a_list_with_attributes_runs_and_goes_on_whatever_they_are(box: Box) -> None:
    box.write("[name=a gpus=1] echo a", "#gpusched: tag=x", "echo b")
    assert box.gpusched("run", "list.txt").code == 0
    box.write("[name=z retries=3] echo a", "echo b", "[tag=y] echo c")
    assert box.gpusched("run", "list.txt").code == 0
    assert [(row.command, len(row.attempts)) for row in box.jobs()] == [("echo a", 1), ("echo b", 1), ("echo c", 1)]


def test_a_command_with_parameters_has_a_queue_of_its_own(box: Box) -> None:
    command = "printf '<%s>' {lr} {seed}"
    name = Sweep(command).stem
    words = ["run", "-c", command, "-p", "lr=1e-3,a b"]
    assert box.gpusched(*words, "-p", "seed=0..1").code == 0
    assert [row.said() for row in box.jobs(name)] == ["<1e-3><0>", "<1e-3><1>", "<a b><0>", "<a b><1>"]
    ended = box.gpusched(*words, "-p", "seed=1..2")
    assert ended.code == 0
    assert [len(row.attempts) for row in box.jobs(name)] == [1] * 6
    assert f"{name}" in box.gpusched("status").out
    other = box.gpusched("run", "-c", "true {seed}", "-p", "seed=1", "--log-dir", f"gpusched-runs/{name}")
    assert other.code == 2
    assert "the queue of another list: -c printf" in other.err


def test_other_values_take_no_waiting_job_back(box: Box) -> None:
    words = ["run", "-c", UNTIL_GO + "; echo {n}", "--max-gpus", "1"]
    name = Sweep(words[2]).stem
    first = box.start(*words, "-p", "n=1..5")
    first.wait_until_said("job 1 on")
    assert box.gpusched(*words, "-p", "n=6").code == 75
    (box.work / "go").touch()
    assert first.wait().code == 0
    assert sorted(row.said() for row in box.jobs(name)) == [f"{n}\n" for n in range(1, 7)]


def test_what_is_refused_makes_no_queue(box: Box) -> None:
    box.write("jobs:", "- {command: a, gpsu: 1}", name="s.yaml")
    ended = box.gpusched("run", "s.yaml")
    assert ended.code == 2
    assert "s.yaml:2:16: error: unknown key 'gpsu'; did you mean gpus?" in ended.err
    assert not (box.work / "gpusched-runs").exists()


def test_a_stream_has_attributes_too(box: Box) -> None:
    source = box.root / "source"
    source.write_text("#gpusched: tag=x\n[name=a] echo a\n[name=a] echo again\necho b\n")
    with open(source, "rb") as stream:
        ended = box.spawn("run", "-", "--log-dir", "q", stdin=stream.fileno()).wait()
    assert ended.code == 1  # a line was refused
    assert "line 2 has the name a already" in ended.text
