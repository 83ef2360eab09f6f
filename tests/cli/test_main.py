"""The entry of the command line: help, refusals, exit codes, streams; and the options made from the table."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpusched import __version__
from gpusched.cli import main as front
from gpusched.cli.options import SettingsCommand, join_gpu_words, settings_options
from gpusched.common.errors import EXIT_CANNOT_WORK, EXIT_INTERRUPTED, EXIT_USAGE, GpuschedError
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import SETTINGS
from tests.support.paths import ROOT

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _plain_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of the person who runs the tests."""
    for name in list(os.environ):
        if name.startswith("GPUSCHED_") or name == "LOG_LEVEL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    yield


# ---- the entry -------------------------------------------------------------------------------------


def test_help_lists_every_command(capsys: Capture) -> None:
    assert front.run(["--help"]) == 0
    out = capsys.readouterr().out
    for name, (_, _, short) in front.COMMANDS.items():
        assert f"  {name} " in out and short in out


@pytest.mark.parametrize("name", front.COMMANDS)
def test_a_command_says_the_same_as_the_table_and_gives_an_example(name: str) -> None:
    command = front.cli.get_command(click.Context(front.cli), name)
    assert command is not None and command.name == name
    assert (command.help or "").split("\n")[0].rstrip(".") == front.COMMANDS[name][2]
    assert f"gpusched {name}" in (command.epilog or "")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert (parameter.help or "")[:1].isupper(), f"{name} {parameter.opts}"


def test_version(capsys: Capture) -> None:
    assert front.run(["--version"]) == 0
    assert capsys.readouterr().out == f"gpusched {__version__}\n"


def test_without_a_command_the_help_goes_to_stderr(capsys: Capture) -> None:
    assert front.run([]) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("Usage: gpusched")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["confg"], "there is no command 'confg'\n  did you mean config?\n"),
        (["xyzzy"], "there is no command 'xyzzy'\n  'gpusched --help' lists the commands\n"),
        (
            ["list.txt"],
            "there is no command 'list.txt'\n  to run the commands in that file: gpusched run list.txt\n",
        ),
        (["config", "--jsn"], "--jsn"),
        (["config", "word"], "see 'gpusched config --help'\n"),
        (["--wrong"], "see 'gpusched --help'\n"),
    ],
)
def test_a_wrong_word_is_refused_with_what_would_be_right(argv: list[str], says: str, capsys: Capture) -> None:
    Path("list.txt").write_text("true\n")
    assert front.run(argv) == EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("gpusched: error: ") and says in err


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (
            GpuschedError("no GPU", where="GPU 3", hint="wait", exit_code=3),
            3,
            "gpusched: error: GPU 3: no GPU\n  wait\n",
        ),
        (GpuschedError("no\x1b[2J", where="a\x9b"), EXIT_USAGE, "error: a\\x9b: no\\x1b[2J\n"),
        (click.ClickException("no such thing"), EXIT_USAGE, "gpusched: error: no such thing\n"),
        (KeyboardInterrupt(), EXIT_INTERRUPTED, ""),
        (click.exceptions.Exit(75), 75, ""),
        (OSError(errno.ENOSPC, "No space left on device", "/x/queue.db"), EXIT_CANNOT_WORK, "/x/queue.db"),
    ],
)
def test_a_no_from_a_command_is_one_message_and_a_code(
    raised: BaseException, code: int, says: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def fails() -> None:
        raise raised

    monkeypatch.setattr(front, "drop", lambda stream: None)
    monkeypatch.setattr(front.LazyGroup, "get_command", lambda *_: fails)
    assert front.run(["config"]) == code
    err = capsys.readouterr().err
    assert says in err and "Traceback" not in err


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), (75, 75)])
def test_what_a_command_returns_is_the_exit_code(
    returned: int | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def ends() -> int | None:
        return returned

    monkeypatch.setattr(front.LazyGroup, "get_command", lambda *_: ends)
    assert front.run(["config"]) == code


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def fails() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(front.LazyGroup, "get_command", lambda *_: fails)
    with pytest.raises(RuntimeError):
        front.run(["config"])


def python(*args: str) -> list[str]:
    return [sys.executable, "-m", "gpusched", *args]


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(python("config"), stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (front.EXIT_BROKEN_PIPE, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(python("config"), stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr.count(b"\n")) == (EXIT_CANNOT_WORK, 1)


@pytest.mark.parametrize("closed", [[0], [1], [0, 1, 2]])
def test_closed_streams_do_no_harm(closed: list[int]) -> None:
    shut = " ".join(f"{number}>&-" for number in closed)
    done = subprocess.run(["sh", "-c", f'"$0" "$@" {shut}', *python("config")], capture_output=True)
    assert done.returncode == 0


@pytest.mark.parametrize("locale", ["POSIX", "C"])
def test_no_locale_makes_printing_fail(locale: str) -> None:
    Path("gpusched.yaml").write_text("shell: /opt/Größe/둘\n", "utf-8")
    env = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "XDG_CONFIG_HOME": "/none"}
    done = subprocess.run(python("config"), capture_output=True, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"shell" in done.stdout


def test_help_costs_little_more_than_click() -> None:
    """Counted in modules, since a time is not steady while other tests run; `make bench` has the time."""

    def loaded(code: str) -> set[str]:
        code += "\nimport sys; print('\\n'.join(sys.modules), file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
        return set(done.stderr.split())

    more = loaded("from gpusched.cli import main; main.run(['--help'])") - loaded("import click")
    ours = {name for name in more if name.split(".")[0] == "gpusched"}
    assert ours == {"gpusched", "gpusched.common", "gpusched.common.errors", "gpusched.cli", "gpusched.cli.main"}
    assert len(more - ours) < 25, sorted(more)


# ---- gpusched config -------------------------------------------------------------------------------


def test_config_shows_each_value_and_its_origin(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("gpusched.yaml").write_text("time_limit: 90m\n")
    monkeypatch.setenv("GPUSCHED_MAX_GPUS", "2")
    monkeypatch.setenv("GPUSCHED_MAX_CHECK", "2")
    assert front.run(["config"]) == 0
    out, err = capsys.readouterr()
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line}
    assert lines["max_gpus"] == ["2", "env", "GPUSCHED_MAX_GPUS"]
    assert lines["time_limit"] == ["1h30m", "file", f"{os.getcwd()}/gpusched.yaml"]
    assert lines["shell"] == ["bash", "default"]
    assert set(SETTINGS) < set(lines)
    assert lines["project"] == [f"{os.getcwd()}/gpusched.yaml", "(read)"]
    assert err == (
        "gpusched: warning: the variable GPUSCHED_MAX_CHECK is no setting and is ignored; "
        "did you mean GPUSCHED_MAX_CHECKS?\n"
    )


def test_config_as_json(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCHED_TIME_LIMIT", "2h")
    assert front.run(["config", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["settings"]["time_limit"] == {"value": 7200.0, "origin": "env GPUSCHED_TIME_LIMIT"}
    assert shown["settings"]["max_gpus"] == {"value": None, "origin": "default"}
    assert [f["layer"] for f in shown["files"]] == ["system", "user", "project"]


def test_a_bad_file_is_named(capsys: Capture) -> None:
    Path("gpusched.yaml").write_text("max_gpu: 2\n")
    assert front.run(["config"]) == EXIT_USAGE
    assert capsys.readouterr().err == (
        f"gpusched: error: {os.getcwd()}/gpusched.yaml:1: there is no setting 'max_gpu'\n  did you mean max_gpus?\n"
    )


# ---- options ---------------------------------------------------------------------------------------


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
        (["f"], ["f", False, None, None, False, "memory", None]),
        (["f", "--max-gpus", "2", "--force"], ["f", True, 2, None, False, "memory", None]),
        (["--gpu-list", "4", "5", "6", "7", "f"], ["f", False, None, "4,5,6,7", False, "memory", None]),
        (["--gpus", "0", "1", "2", "f"], ["f", False, None, "0,1,2", False, "memory", None]),
        (["f", "--gpus", "0, 2"], ["f", False, None, "0,2", False, "memory", None]),
        (["--gpus=0", "1", "f"], ["f", False, None, "0,1", False, "memory", None]),
        (["--gpus", "0,", "2", "f"], ["f", False, None, "0,2", False, "memory", None]),
        (["--strip-gpu-env", "f"], ["f", False, None, None, True, "memory", None]),
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
    assert json.loads(capsys.readouterr().out) == ["f", False, 1, "1", False, "memory", None]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["f", "--max-gpus", "0"], "--max-gpus: max_gpus is '0', but must be a whole number, at least 1"),
        (["f", "--gpus", "a"], "--gpu-list: gpu_list is 'a', but must be a list such as"),
        (["f", "--gpus"], "requires an argument"),
        (["f", "--free-when", "never"], "--free-when"),
        (["--gpus", "0", "1"], "Missing argument 'FILE'"),
    ],
)
def test_a_bad_flag_is_a_usage_error(
    argv: list[str], says: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(argv, monkeypatch) == EXIT_USAGE
    assert says in capsys.readouterr().err


def test_help_shows_defaults(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(["--help"], monkeypatch) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "--max-gpus N" in out and "[default: 4, or --gpus-per-job if larger]" in out
    assert "--gpu-list, --gpus LIST" in out
    assert "--strip-gpu-env / --no-strip-gpu-env" in out
    assert "[memory|idle]" in out or "memory|idle" in out


@pytest.mark.parametrize(
    ("args", "joined"),
    [
        (["f", "--gpus", "0", "-x"], ["f", "--gpus", "0", "-x"]),
        (["--gpus", "GPU-1a", "MIG-2/1/0", "f"], ["--gpus", "GPU-1a,MIG-2/1/0", "f"]),
        (["--gpus", "0-3", "commands.txt"], ["--gpus", "0-3", "commands.txt"]),
        (["--gpus", "0", "7z.txt", "4"], ["--gpus", "0", "7z.txt", "4"]),
        (["--gpus", "0", "--", "1"], ["--gpus", "0", "--", "1"]),
        (["--", "--gpus", "0", "1"], ["--", "--gpus", "0", "1"]),
        (["--gpus", "commands.txt"], ["--gpus", "commands.txt"]),
        (["--gpus"], ["--gpus"]),
        (["--gpus", "0", "-"], ["--gpus", "0", "-"]),
        (["--max-gpus", "2", "3"], ["--max-gpus", "2", "3"]),
    ],
)
def test_words_after_the_gpu_flag_are_taken_while_they_look_like_gpus(args: list[str], joined: list[str]) -> None:
    assert join_gpu_words(args) == joined
