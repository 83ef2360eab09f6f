"""The entry of the command line: finds the verb, and turns every refusal into one line and an exit code.

Imports only click: the module of a verb is imported when the verb is used, and the help is made from the table.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, TextIO

import click

from gpusched import __version__
from gpusched.common.errors import (
    EXIT_CANNOT_WORK,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    GpuschedError,
    disk_full,
    is_disk_full,
)

EXIT_BROKEN_PIPE = 128 + 13  # what a shell shows for a program that SIGPIPE ended

# The verbs by their group in --help, each with its help. A verb lies in gpusched/cli/GROUP/VERB.py.
GROUPS: dict[str, dict[str, str]] = {
    "Run": {
        "run": "Run a file of commands on the GPUs that are free",
        "submit": "Add jobs to a queue that stays, from anywhere",
        "exec": "Run a command here, on a GPU of its own",
        "reserve": "Hold a GPU for an editor or a notebook",
        "start": "Dispatch a queue that stays",
        "check": "Check a list without running it",
    },
    "Look": {
        "status": "Show the queues and their jobs",
        "logs": "Print what a job wrote",
        "explain": "Say why a job waits, or how it ended",
        "wait": "Wait until jobs have ended",
        "history": "Show what has ended lately",
        "usage": "Show what jobs have used: GPU hours, energy",
        "report": "Write what a queue did, as one page",
        "top": "Watch a queue and the GPUs, and change jobs",
        "web": "Show a queue and the GPUs in a browser, live",
    },
    "Change": {
        "edit": "Change what waiting jobs need",
        "prio": "Have waiting jobs start earlier or later",
        "cancel": "Cancel jobs, running ones too",
        "requeue": "Queue failed or cancelled jobs again",
        "hold": "Keep waiting jobs from starting",
        "release": "Let held jobs start again",
        "pause": "Let nothing new start in a queue",
        "resume": "Let a paused queue go on",
        "set": "Change settings of a queue at once",
        "stop": "Ask a dispatcher to leave",
        "clean": "Remove finished jobs, their logs and dead queues",
    },
    "Box": {
        "devices": "Show the GPUs: who is on each, free or not, and why",
        "config": "Show each setting, its value and its origin",
        "service": "Print or install a systemd unit for a queue that stays",
        "completion": "Print the completion script of a shell",
    },
    "Features": {
        "esd": "Analyse the spectra of the weights of many models",
        "shard": "Run a script on many items in shards, and merge what they write",
        "merge": "Make one file of many parts",
        "pool": "Run workers over many items, each with its models loaded once",
        "tune": "Find the batch size and the workers of a pool",
        "cluster": "Have one queue over several boxes",
    },
}
COMMANDS = {verb: f"gpusched.cli.{group.lower()}.{verb}" for group, verbs in GROUPS.items() for verb in verbs}


class LazyGroup(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Offer the verbs from the table: a shell does not wait until all of them are imported."""
        item = importlib.import_module("click.shell_completion").CompletionItem
        verbs = {verb: text for group in GROUPS.values() for verb, text in group.items()}
        found = [item(verb, help=text) for verb, text in verbs.items() if verb.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        wide = max(map(len, COMMANDS))
        for group, verbs in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(verb.ljust(wide), text) for verb, text in verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in COMMANDS and not word.startswith("-") and not ctx.resilient_parsing:
            raise GpuschedError(f"there is no command {word!r}", hint=_hint_for(word))
        return super().resolve_command(ctx, args)


# What other tools call a verb of ours, or what one may expect to find.
MEANINGS = {
    "kill scancel abort delete": "gpusched cancel JOB",
    "remove rm purge prune": "gpusched cancel JOB drops a job; gpusched clean removes finished ones",
    "sacct sstat": "gpusched history, gpusched usage",
    "retry rerun restart": "gpusched requeue JOB",
    "ps ls list queue queues squeue jobs show": "gpusched status",
    "follow tail": "gpusched logs JOB -f",
    "log cat output": "gpusched logs JOB",
    "suspend": "gpusched hold JOB keeps a job from starting; gpusched pause holds up a whole queue",
    "stash": "gpusched hold JOB; gpusched submit --hold",
    "unhold unpause enqueue unstash": "gpusched release JOB; gpusched resume lets a paused queue go on",
    "continue": "gpusched run FILE goes on where it stopped; gpusched release JOB lets a held job start",
    "parallel slots": "gpusched set max-gpus=N; cpu-jobs=N for jobs without a GPU",
    "group": "gpusched submit -q NAME makes a queue of its own; --tag NAME puts jobs into a group",
    "shutdown quit": "gpusched stop",
    "scontrol": "gpusched explain JOB; gpusched edit, hold, release and requeue change it",
    "update alter": "gpusched edit JOB, or change the file of commands: it is read again while it runs",
    "priority renice nice switch": "gpusched prio JOB N",
    "add": "gpusched submit COMMAND",
    "sbatch": "gpusched submit bash SCRIPT. #SBATCH lines are not read: write them as options of submit, before bash: "
    "--gpus N, --time 2h (a bare number is seconds), --mem SIZE (of each GPU, not of the host: that is --ram)",
    "srun": "gpusched exec COMMAND runs on this terminal, and ends with it; "
    "gpusched run -- COMMAND is a job of your queue, and goes on without the terminal",
    "salloc": "gpusched exec",
    "gpus gpu sinfo nvidia-smi": "gpusched devices",
    "why": "gpusched explain JOB",
    "settings": "gpusched config",
    "htop watch nvtop tui": "gpusched top",
    "page browser dashboard serve http gui": "gpusched web",
}
OPTIONS = {  # what other tools call an option of ours
    "--gpus N": ("--gres", "--gpus-per-task", "--gpus-per-node", "-G"),
    "--name NAME": ("--job-name", "--label", "-J", "-L", "-l"),
    "-c 'COMMAND {n}' -p n=0..9": ("--array", "-a"),
    "--after JOB, or --after-any, --after-failed, --after-ended": ("--dependency",),
    "--begin +2h": ("--delay",),
    "--hold": ("--stashed",),
    "--cwd DIR": ("--working-directory", "--chdir", "-w"),
    "--prio N": ("--priority", "--nice"),
    "--cpus N": ("--cpus-per-task",),
    "--mem SIZE, on each GPU": ("--mem-per-gpu", "--gpu-memory"),
    "--tag TAG, or -q QUEUE for a queue of its own": ("--partition", "--group", "-g"),
}
NOT_BY_SPELLING = ("cancel", "stop")  # they end what runs: nobody is led there by a slip


def _hint_for(word: str) -> str:
    import difflib

    if os.path.isfile(word):
        return f"to run the commands in that file: gpusched run {word}"
    meant = next((hint for words, hint in MEANINGS.items() if word.lower() in words.split()), "")
    if meant:
        return meant
    verbs = [verb for verb in COMMANDS if verb not in NOT_BY_SPELLING]
    near = difflib.get_close_matches(word, verbs, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else "'gpusched --help' lists the commands"


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample:\n  gpusched run commands.txt --max-gpus 2",
)
@click.version_option(__version__, prog_name="gpusched", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> int | None:
    """Run a file of commands on the GPUs of a shared box that are really free.

    Kill it, lose the terminal, reboot: the same command goes on where it stopped.
    """
    if ctx.invoked_subcommand is not None:
        return None
    click.echo(ctx.get_help(), err=True)
    return EXIT_USAGE


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and leave with its exit code."""
    _open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # whatever the locale, printing never raises
            stream.reconfigure(errors="replace")
    if "_GPUSCHED_COMPLETE" in os.environ:  # click's shell completion
        cli.main(prog_name="gpusched")
    code = run(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # to tear the interpreter down takes longer than what most commands do


def _open_standard_streams() -> None:
    """Open those of the descriptors 0, 1 and 2 that are closed, so that no later file gets their numbers."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", encoding="utf-8", errors="replace"))


def run(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code. A command returns its code, or None for 0."""
    try:
        with cli.make_context("gpusched", list(argv)) as ctx:
            result = cli.invoke(ctx)
        code = result if isinstance(result, int) else EXIT_OK
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except click.exceptions.Exit as e:
        return e.exit_code
    except GpuschedError as e:
        return _fail(str(e), e.exit_code)
    except click.ClickException as e:
        context = getattr(e, "ctx", None)  # an option without its value has none
        verb = [word for word in argv[:1] if word in COMMANDS]
        path = context.command_path if context is not None else " ".join(["gpusched", *verb])
        return _fail(f"{_explain(e)}\n  see '{path} --help'", EXIT_USAGE)
    except (KeyboardInterrupt, EOFError, click.Abort):
        return _leave("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        drop(sys.stdout)
        return EXIT_BROKEN_PIPE
    except OSError as e:
        drop(sys.stdout)
        return _fail(_refusal(e), EXIT_CANNOT_WORK)


def _explain(error: click.ClickException) -> str:
    """Return what is wrong in a command line. An option that other tools have leads to ours, where the verb has it."""
    text = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        own = {flag for param in error.ctx.command.params for flag in param.opts}
        for ours, theirs in OPTIONS.items():
            if error.option_name in theirs and ours.split()[0] in own:
                return f"No such option {error.option_name!r}: here it is {ours}"
    return text


def _refusal(error: OSError) -> str:
    """Return what the system has refused, and the remedy. The traceback goes to the log of the dispatcher, if any."""
    import logging

    logging.getLogger("gpusched").info("ended by an error of the system", exc_info=error)
    where, reason = error.filename, error.strerror or str(error)
    if is_disk_full(error):
        return disk_full(where or "standard output", reason)
    return f"{where or 'the system refuses'}: {reason}\n  once that is mended, the same command goes on"


def _fail(text: str, code: int) -> int:
    return _leave(f"error: {text}", code)


def _leave(text: str, code: int) -> int:
    """Print why the command ends, and return its exit code."""
    from gpusched.common.text import clean

    lines = [clean(line) for line in text.split("\n")]  # it names files, and what others wrote into them
    try:
        click.echo("gpusched: " + "\n".join(lines), err=True)
    except OSError:
        drop(sys.stderr)
    return code


def drop(stream: TextIO) -> None:
    """Discard the text that is still buffered, so that Python does not fail again when it exits."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass
