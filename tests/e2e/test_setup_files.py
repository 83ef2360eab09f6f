"""Set-up files of `--setup`, end to end: those that end the shell, leave traps behind, or have other line ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.box import Box

pytestmark = pytest.mark.slow


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as box:
        yield box


def run(box: Box, setup: str, *lines: str, options: str = "") -> int:
    (box.work / "setup.sh").write_bytes(setup.encode())
    return box.run(*lines, options=f"--setup setup.sh {options}").code


@pytest.mark.parametrize(
    ("setup", "line"),
    [
        ("A=1\nexit 0\n", 2),
        ("exec true\n", 0),
        ("A=1\n\n. ./inner.sh\n", 2),
        ("set -n\n", 0),
        ("set -E\ntrap 'exit 0' ERR\nf() { (exit 3); }\nset -e; false; f; exit 0\n", 4),
    ],
)
def test_a_setup_that_ends_the_shell_fails_the_job(box: Box, setup: str, line: int) -> None:
    (box.work / "inner.sh").write_text("B=2\nexit 0\n")
    assert run(box, setup, "touch ran", "touch ran too") == 1
    assert not (box.work / "ran").exists()
    assert [row.state for row in box.jobs()] == ["failed", "failed"]
    text = box.gpusched("explain", "1", "-q", str(box.queue())).out
    assert "its set-up failed" in text
    assert not line or f"at line {line} of" in text


def test_explain_says_where_the_setup_failed(box: Box) -> None:
    assert run(box, "A=1\nactivate() {\n  return 7\n}\nactivate env\n", "touch ran") == 1
    (row,) = box.jobs()
    assert row.outcome == "exited 7"
    assert not (box.work / "ran").exists()
    text = box.gpusched("explain", "1", "-q", str(box.queue())).out
    assert "exit 7, its set-up failed, at line 3 of" in text
    assert "did not run" in text


def test_a_failed_setup_is_no_loss_of_the_box_and_has_its_retries(box: Box) -> None:
    assert run(box, "exit 0\n", "true", options="--retries 1") == 1
    (row,) = box.jobs()
    assert len(row.attempts) == 2


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_traps_of_a_setup_do_not_change_how_the_command_ends(box: Box, shell: str) -> None:
    setup = (
        "trap 'exit 0' ERR\ntrap 'echo \"it'\\''s $?\" > bye; exit 0 # really' EXIT\n" if shell == "bash" else "A=1\n"
    )
    code = run(box, setup, "false", "exit 4", "true", options=f"--shell {shell} --max-gpus 1")
    assert code == 1
    assert [row.outcome for row in box.jobs()] == ["exited 1", "exited 4", "exited 0"]
    if shell == "bash":
        assert (box.work / "bye").read_text() == "it's 0\n"


def test_a_setup_keeps_its_settings_for_the_command(box: Box) -> None:
    setup = "set -euC\nshopt -s expand_aliases\nalias say='echo said'\nexport NAME=sweep\ncd /tmp\n"
    assert run(box, setup, 'say "$NAME" $PWD', "set -o | grep -E 'functrace|nounset'; trap; false; echo on") == 1
    first, second = box.jobs()
    assert first.said() == "said sweep /tmp\n"
    assert second.said().split() == ["functrace", "off", "nounset", "on"]


def test_a_setup_with_crlf_is_read_as_lists_are(box: Box) -> None:
    assert run(box, "export A=one\r\nif true; then\r\n  export B=two\r\nfi\r\n", 'echo "$A$B"') == 0
    assert box.jobs()[0].said() == "onetwo\n"


def test_a_setup_that_is_gone_when_a_job_starts_fails_it(box: Box) -> None:
    assert run(box, "A=1\n", "rm setup.sh", "touch ran", options="--max-gpus 1") == 1
    assert [row.state for row in box.jobs()] == ["succeeded", "failed"]
    assert not (box.work / "ran").exists()


def test_a_shard_whose_setup_ends_the_shell_is_not_merged(box: Box) -> None:
    (box.work / "setup.sh").write_text("exit 0\n")
    words = ["--total", "4", "--num-shards", "2", "--min-items-per-shard", "1", "--merge", "part_{shard}.jsonl"]
    ended = box.gpusched("shard", "--setup", "setup.sh", *words, "--", "true", "{start}", "{end}")
    assert ended.code == 1, ended.text
    assert "merged" not in ended.out
