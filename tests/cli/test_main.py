"""The entry of the command line: help, refusals, exit codes, streams; and the options made from the table."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gpusched import __version__
from gpusched.cli import main as front
from gpusched.common.errors import EXIT_CANNOT_WORK, EXIT_INTERRUPTED, EXIT_USAGE, GpuschedError
from tests.support.paths import ROOT

Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.usefixtures("plain_home")


TEXTS = {verb: text for verbs in front.GROUPS.values() for verb, text in verbs.items()}


# ---- the entry -------------------------------------------------------------------------------------


def test_help_lists_every_command(capsys: Capture) -> None:
    assert front.run(["--help"]) == 0
    out = capsys.readouterr().out
    for group, verbs in front.GROUPS.items():
        assert f"\n{group}:\n" in out
        assert all(f"  {verb} " in out and text in out for verb, text in verbs.items())


@pytest.mark.parametrize("name", front.COMMANDS)
def test_a_command_says_the_same_as_the_table_and_gives_an_example(name: str) -> None:
    command = front.cli.get_command(click.Context(front.cli), name)
    assert command is not None and command.name == name
    assert (command.help or "").split("\n")[0].rstrip(".") == TEXTS[name]
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
    ("word", "verb"),
    [
        ("kill", "cancel"),
        ("retry", "requeue"),
        ("ps", "status"),
        ("ls", "status"),
        ("queue", "status"),
        ("squeue", "status"),
        ("follow", "logs JOB -f"),
        ("suspend", "hold"),
        ("continue", "run FILE goes on"),
        ("sbatch", "submit bash SCRIPT. #SBATCH lines are not read: write them as options of submit"),
        ("srun", "exec COMMAND runs on this terminal, and ends with it; gpusched run -- COMMAND is a job of your"),
        ("restart", "requeue"),
        ("parallel", "set max-gpus=N"),
        ("scontrol", "explain JOB"),
    ],
)
def test_a_verb_of_another_tool_leads_to_ours_by_its_meaning(word: str, verb: str, capsys: Capture) -> None:
    assert front.run([word]) == EXIT_USAGE
    assert f"there is no command {word!r}\n  gpusched {verb}" in capsys.readouterr().err


def test_a_list_is_edited_in_its_file(capsys: Capture) -> None:
    assert front.run(["update"]) == EXIT_USAGE
    assert "change the file of commands: it is read again" in capsys.readouterr().err


def test_what_is_suggested_exists() -> None:
    verbs = {verb for hint in front.MEANINGS.values() for verb in re.findall(r"gpusched (\w+)", hint)}
    assert verbs <= set(front.COMMANDS)
    words = [word for words in front.MEANINGS for word in words.split()]
    assert len(words) == len(set(words)) and not set(words) & set(front.COMMANDS)


@pytest.mark.parametrize("word", ["stp", "stopp", "sto", "cancell", "cansel", "cancle", "spot"])
def test_no_slip_leads_to_a_verb_that_ends_jobs(word: str, capsys: Capture) -> None:
    assert front.run([word]) == EXIT_USAGE
    err = capsys.readouterr().err
    assert "did you mean stop" not in err and "did you mean cancel" not in err


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
        (KeyboardInterrupt(), EXIT_INTERRUPTED, "gpusched: interrupted\n"),
        (click.exceptions.Exit(75), 75, ""),
        (OSError(errno.ENOSPC, "No space left on device", "/x/queue.db"), EXIT_CANNOT_WORK, "/x/queue.db"),
        (OSError(errno.ENOMEM, "No memory", "/x/a.lock"), EXIT_CANNOT_WORK, "error: /x/a.lock: No memory\n  once that"),
        (OSError(errno.EIO, "No answer"), EXIT_CANNOT_WORK, "gpusched: error: the system refuses: No answer\n"),
        (OSError("odd"), EXIT_CANNOT_WORK, "gpusched: error: the system refuses: odd\n"),
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


def test_a_refusal_that_nobody_can_read_keeps_its_exit_code() -> None:
    words = [sys.executable, "-m", "gpusched", "confg"]
    with open("/dev/full", "wb") as full:
        assert subprocess.run(words, stderr=full, cwd=ROOT).returncode == EXIT_USAGE


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


INTERRUPTED_START = """
import signal, sys
class Finder:
    def find_spec(self, name, *more):
        if name == sys.argv[-1]:
            exec("signal.raise_signal(signal.SIGINT)", {"signal": signal})  # as in the making of a dataclass
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
from gpusched.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "module", ["click", "gpusched.cli.run.run", "gpusched.lists.submit", "gpusched.operations.run.run"]
)
def test_an_interrupt_while_it_starts_is_said_in_one_line(module: str) -> None:
    """The interrupt comes as this module is imported."""
    Path("list.txt").write_text("true\n")
    Path("start.py").write_text(INTERRUPTED_START)
    words = [sys.executable, "-m", "start", "run", "list.txt", "--log-dir", module]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INTERRUPTED, "", "gpusched: interrupted\n")


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
