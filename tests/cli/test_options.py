"""The options made from the settings table, and GPUs as several words."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from gpusched.cli import main as front
from gpusched.cli.options import SettingsCommand, settings_options
from gpusched.cli.spelling import join_gpu_words
from gpusched.common.errors import EXIT_USAGE
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import FAILURES, GPUS, JOBS, LIST, OUTPUT, SETTINGS
from tests.support.command_line import Capture

pytestmark = pytest.mark.usefixtures("plain_home")

RUN_GROUPS = (LIST, GPUS, JOBS, FAILURES, OUTPUT)


@click.command(cls=SettingsCommand)
@click.argument("file")
@click.option("--force", is_flag=True)
@settings_options("max_gpus", "gpu_list", "strip_gpu_env", "free_when", "time_limit")
def sample(file: str, force: bool, loaded: LoadedSettings) -> int:
    s = loaded.settings
    click.echo(json.dumps([file, force, s.max_gpus, s.gpu_list, s.strip_gpu_env, s.free_when, s.time_limit]))
    return 0


def call(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(front.LazyGroup, "get_command", lambda *_: sample)
    return front.run(["config", *argv])


@pytest.mark.parametrize(
    ("argv", "got"),
    [
        (["f"], ["f", False, None, None, False, "auto", None]),
        (["f", "--max-gpus", "2", "--force"], ["f", True, 2, None, False, "auto", None]),
        (["--gpu-list", "4", "5", "6", "7", "f"], ["f", False, None, "4,5,6,7", False, "auto", None]),
        (["f", "--gpu-list", "all"], ["f", False, None, None, False, "auto", None]),
        (["f", "--gpu-list", "0, 2"], ["f", False, None, "0,2", False, "auto", None]),
        (["--gpu-list=0", "1", "f"], ["f", False, None, "0,1", False, "auto", None]),
        (["--gpu-list", "0,", "2", "f"], ["f", False, None, "0,2", False, "auto", None]),
        (["--strip-gpu-env", "f"], ["f", False, None, None, True, "auto", None]),
        (["f", "--free-when", "idle", "--time-limit", "2h"], ["f", False, None, None, False, "idle", 7200.0]),
    ],
)
def test_flags_reach_the_settings(
    argv: list[str], got: list[object], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(argv, monkeypatch) == 0
    assert json.loads(capsys.readouterr().out) == got


def test_a_flag_wins_over_a_file_and_a_switch_can_be_taken_back(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("gpusched.yaml").write_text("strip_gpu_env: true\nmax_gpus: 3\ngpu_list: [1]\n")
    assert call(["f", "--no-strip-gpu-env", "--max-gpus", "1"], monkeypatch) == 0
    assert json.loads(capsys.readouterr().out) == ["f", False, 1, "1", False, "auto", None]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["f", "--max-gpus", "0"], "--max-gpus: max_gpus is '0', but must be a whole number, at least 1"),
        (["f", "--gpu-list", "a"], "--gpu-list: gpu_list is 'a', but must be a list such as"),
        (["f", "--gpu-list"], "--gpu-list: the value is missing: LIST"),
        (["f", "--free-when", "never"], "--free-when"),
        (["--gpu-list", "0", "1"], "Missing argument 'FILE'"),
    ],
)
def test_a_bad_flag_is_a_usage_error(
    argv: list[str], says: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(argv, monkeypatch) == EXIT_USAGE
    assert says in capsys.readouterr().err


def test_help_shows_groups_and_defaults(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(["--help"], monkeypatch) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Which GPUs: --max-gpus N Use at most N GPUs at once [default: 4]" in out
    assert "--gpu-list LIST" in out
    assert "Each job: --time TIME" in out
    assert "--strip-gpu-env" not in out  # rarely used: accepted, and in the reference


@pytest.mark.parametrize("verb", ["run", "esd", "shard"])
def test_rare_options_are_accepted_and_not_in_the_help(
    verb: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert front.run([verb, "--help"]) == 0
    out = capsys.readouterr().out
    rare = [setting for setting in SETTINGS.values() if setting.is_rare]
    assert len(rare) >= 12
    assert not [setting.flag for setting in rare if setting.flag in out]
    command = front.cli.get_command(click.Context(front.cli), verb)
    assert command is not None
    accepted = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
    assert {setting.flag for setting in rare} <= accepted


@pytest.mark.parametrize("verb", ["run", "check", "esd", "shard", "devices"])
def test_every_option_has_a_group(verb: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert front.run([verb, "--help"]) == 0
    assert "\nOptions:\n" not in capsys.readouterr().out


def test_the_help_of_run_fits_on_a_screen(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert front.run(["run", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 42
    assert [line for line in lines if line.endswith(":")] == [f"{name}:" for name in RUN_GROUPS]


@pytest.mark.parametrize(
    ("args", "joined"),
    [
        (["f", "--gpu-list", "0", "-x"], ["f", "--gpu-list", "0", "-x"]),
        (["--gpu-list", "GPU-1a", "MIG-2/1/0", "f"], ["--gpu-list", "GPU-1a,MIG-2/1/0", "f"]),
        (["--gpu-list", "0-3", "commands.txt"], ["--gpu-list", "0-3", "commands.txt"]),
        (["--gpu-list", "0", "7z.txt", "4"], ["--gpu-list", "0", "7z.txt", "4"]),
        (["--gpu-list", "0", "--", "1"], ["--gpu-list", "0", "--", "1"]),
        (["--", "--gpu-list", "0", "1"], ["--", "--gpu-list", "0", "1"]),
        (["--gpu-list", "commands.txt"], ["--gpu-list", "commands.txt"]),
        (["--gpu-list"], ["--gpu-list"]),
        (["--gpu-list", "0", "-"], ["--gpu-list", "0", "-"]),
        (["--max-gpus", "2", "3"], ["--max-gpus", "2", "3"]),
    ],
)
def test_words_after_the_gpu_flag_are_taken_while_they_look_like_gpus(args: list[str], joined: list[str]) -> None:
    assert join_gpu_words(args) == joined


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["4-7"], "these GPUs alone: --gpu-list 4-7"),
        (["0", "1", "2"], "these GPUs alone: --gpu-list 0,1,2"),
        (["2", "3"], "these GPUs alone: --gpu-list 2,3"),
        (["GPU-8f3a"], "these GPUs alone: --gpu-list GPU-8f3a"),
        (["0"], "jobs without a GPU: --gpus-per-job 0; GPU 0 alone: --gpu-list 0"),
        (["all"], "all GPUs may be used unless --gpu-list names some; --max-gpus N says how many at once"),
        (["two"], "for example --gpus 2; which GPUs may be used: --gpu-list 0,1,4-7"),
        (["-1"], "for example --gpus 2; which GPUs may be used: --gpu-list 0,1,4-7"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "check", "shard", "esd"])
def test_gpus_is_a_number_and_refuses_what_names_gpus(verb: str, words: list[str], hint: str, capsys: Capture) -> None:
    Path("list.txt").write_text("true\n")
    assert front.run([verb, "list.txt", "--gpus", *words]) == EXIT_USAGE
    err = capsys.readouterr().err
    assert err.startswith("gpusched: error: --gpus: is a number of GPUs for each job, not ")
    assert hint in err


@pytest.mark.parametrize("words", [["--gpus", "2"], ["--gpus=2"]])
def test_gpus_gives_each_job_that_many_and_says_so_once(words: list[str], capsys: Capture) -> None:
    Path("list.txt").write_text("true\nfalse\n")
    assert front.run(["check", "list.txt", *words, "--json"]) == 0
    shown = capsys.readouterr()
    assert [job["gpus"] for job in json.loads(shown.out)["jobs"]] == [2, 2]
    assert shown.err.count("--gpus 2 gives each job 2 GPUs; --gpu-list 2 would choose GPUs by their indices") == 1
    assert front.run(["check", "list.txt", "--gpus-per-job", "2"]) == 0
    assert "--gpus" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "list.txt", "-q"], "the name of a queue is missing"),
        (["run", "-q", "list.txt"], "list.txt is a file, and no queue"),
        (["run", "-q", "--dry-run", "list.txt"], "a queue's name does not begin with a dash: --dry-run"),
        (["shard", "--total", "9", "-q", "--", "true", "{start}"], "the name of a queue is missing"),
        (["esd", "-q", "list.txt"], "list.txt is a file, and no queue"),
        (["status", "-q", "-v"], "a queue's name does not begin with a dash: -v"),
        (["cancel", "3", "-q", "--all"], "a queue's name does not begin with a dash: --all"),
    ],
)
def test_q_as_a_switch_is_refused_with_the_option_for_quiet(words: list[str], says: str, capsys: Capture) -> None:
    Path("list.txt").write_text("true\n")
    assert front.run(words) == EXIT_USAGE
    assert capsys.readouterr().err == f"gpusched: error: -q: {says}\n  -q names a queue; quiet is --quiet\n"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "list.txt", "-q", "a", "--log-dir", "b"],
        ["status", "a", "-q", "b"],
        ["stop", "a", "-q", "b"],
    ],
)
def test_a_queue_that_is_named_twice_is_refused(words: list[str], capsys: Capture) -> None:
    Path("list.txt").write_text("true\n")
    assert front.run(words) == EXIT_USAGE
    assert "not both" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "path"), [("sweep", "gpusched-runs/sweep"), ("./sweep", "sweep")])
def test_q_names_the_queue_of_a_start(name: str, path: str, capsys: Capture) -> None:
    Path("list.txt").write_text("true\n")
    assert front.run(["run", "list.txt", "-q", name, "--simulate", "1", "--max-checks", "1", "--quiet"]) == 0
    assert Path(path, "queue.db").exists()
    capsys.readouterr()
    assert front.run(["status", name]) == 0
    assert "1 succeeded" in capsys.readouterr().out
    assert front.run(["stop", name]) == 0
    assert "no dispatcher" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--time", "90"], "--time 90 is 1m30s: a bare number is seconds"),
        (["--time=2:00:00"], "--time 2:00:00 is 2h"),
        (["--time", "1-12:00:00"], "--time 1-12:00:00 is 1d12h"),
        (["--time", "2h"], ""),
        (["--time-limit", "90"], ""),
        (["--mem", "18G"], "--mem 18G is 18432 MiB on each GPU of a job, not memory of the host"),
    ],
)
def test_options_of_slurm_say_what_they_mean_here(words: list[str], note: str, capsys: Capture) -> None:
    Path("list.txt").write_text("true\n")
    assert front.run(["check", "list.txt", *words]) == 0
    assert capsys.readouterr().err == (f"gpusched: {note}\n" if note else "")


def test_time_mem_and_gpus_equal_the_attributes(capsys: Capture) -> None:
    Path("stated.txt").write_text("[gpus=2 mem=18G time=1-12:00:00] a\n")
    Path("plain.txt").write_text("a\n[gpus=0] b\n[mem=2G time=5] c\n")
    assert front.run(["check", "stated.txt", "--json"]) == 0
    (stated,) = json.loads(capsys.readouterr().out)["jobs"]
    options = ["--gpus", "2", "--mem", "18G", "--time", "1-12:00:00"]
    assert front.run(["check", "plain.txt", *options, "--json"]) == 0
    job, on_cpu, own = json.loads(capsys.readouterr().out)["jobs"]
    assert job == stated
    assert (on_cpu["gpus"], on_cpu["mem_bytes"]) == (0, None)
    assert (own["mem_bytes"], own["time_limit_s"]) == (2 << 30, 5)


def test_mem_is_held_against_the_gpus(capsys: Capture) -> None:
    Path("list.txt").write_text("true\n")
    assert front.run(["run", "list.txt", "--simulate", "1", "--mem", "900G"]) == EXIT_USAGE
    assert "line 1: wants 921600 MiB on a GPU, and a GPU here can give" in capsys.readouterr().err
