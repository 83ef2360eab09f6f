"""`gpusched submit`: add jobs to a queue that stays, and have it dispatched."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gpusched.cli.completion import complete_files
from gpusched.cli.options import load, print_json, say, standing_option
from gpusched.cli.run.attributes import attribute_options, begin_option
from gpusched.cli.run.source import accept, accept_list, names_list, read_job_source, sweep_options
from gpusched.common.errors import EXIT_OK

if TYPE_CHECKING:
    from gpusched.core.jobs.job import Attributes
    from gpusched.lists.jobfile import JobFile
    from gpusched.lists.submit import SubmitOptions
    from gpusched.operations.run.submit import Added


class SubmitCommand(click.Command):
    """A command that knows if its words stand behind `--`: then they are a command, whatever file has this name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before = list(args)
        rest = super().parse_args(ctx, args)
        words = ctx.params["words"]
        ctx.params["is_command"] = bool(words) and before[-len(words) - 1 : -len(words)] == ["--"]
        return rest


@click.command(
    cls=SubmitCommand,
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  gpusched submit python train.py --seed 1\n"
    "  gpusched submit --mem 18G --name eval -- python eval.py\n"
    "  gpusched submit -c 'python train.py --lr {lr}' -p lr=0.1,0.2",
)
@click.argument(
    "words", nargs=-1, metavar="COMMAND... | FILE | -", type=click.UNPROCESSED, shell_complete=complete_files
)
@standing_option("Submit to this queue, made if need be.  [default: your own]")
@sweep_options
@attribute_options
@click.option("--hold", is_flag=True, help="Keep the jobs from starting until they are released.")
@begin_option
@click.option("--once", metavar="KEY", default="", help="Add the job only if none has this key.")
@click.option(
    "--export", metavar="all|none|NAME,...", default="all", help="Give the jobs this much of the environment."
)
@click.option("--no-start", is_flag=True, help="Start no dispatcher.")
@click.option("--force", is_flag=True, help="Submit despite errors that can be forced.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def submit(words: tuple[str, ...], queue: str | None, force: bool, no_start: bool, as_json: bool, **more: Any) -> int:
    """Add jobs to a queue that stays, from anywhere.

    Prints their ids, and starts a dispatcher in the background if none works on the queue. The jobs run in this
    directory and with this environment. COMMAND is one job; FILE is what gpusched run takes; - reads standard input.
    """
    from gpusched.lists.submit import SubmitOptions
    from gpusched.operations.run import submit as operation
    from gpusched.operations.run.background import autostart, warn_without_gpus

    loaded = load({})
    options = SubmitOptions(loaded.settings, os.fsencode(os.getcwd()), force)
    wanted = more["attributes"]
    typed = {name: more.pop(name) for name in ("is_command", "command", "parameters", "each")}
    jobs = _read_jobs(words, options, wanted, **typed)
    queue_dir = operation.find_standing_queue(queue, loaded.settings.state_dir)
    added = operation.add_jobs(queue_dir, jobs, options, operation.Wishes(**more))
    if added.is_new_queue and queue is not None:
        say(f"a new queue: {added.queue_dir.path}")
    _print(added, queue, as_json=as_json)
    gpus = options.gpus_wanted(jobs.specs) if wanted.gpus is None else wanted.gpus
    warn_without_gpus(queue_dir, loaded.settings, gpus, say)
    if not no_start:
        autostart(added.queue_dir, loaded.settings, say)
    return EXIT_OK


def _read_jobs(
    words: tuple[str, ...],
    options: SubmitOptions,
    wanted: Attributes,
    *,
    is_command: bool,
    command: str | None,
    parameters: tuple[str, ...],
    each: str | None,
) -> JobFile:
    """Return the jobs of a command, of a list or standard input, or of a command with parameters."""
    if is_command or not names_list(words, wanted.cwd or b""):
        return command_job(words, options, wanted)
    if not (words or command is not None or parameters or each is not None):
        raise click.UsageError("Missing argument 'COMMAND...' (or FILE, - or -c COMMAND).")
    return accept_list(read_job_source(" ".join(words) or None, command, parameters, each), options, wanted=wanted)


def _print(added: Added, queue: str | None, *, as_json: bool) -> None:
    for job_id in added.earlier:
        say(f"job {job_id} was submitted with this key before: nothing is added")
    if as_json:
        print_json({"queue": added.queue_dir.path, "ids": added.ids, "earlier": added.earlier})
    else:
        click.echo("\n".join(map(str, added.ids)))
        if queue is None and added.ids and os.path.isdir("gpusched-runs") and sys.stderr.isatty():
            say(f"this directory has queues of its own: in other commands, say default/{added.ids[0]}, or -q default")
    for text in added.hindrances:
        say(text)
    sys.stdout.flush()


def command_job(words: Sequence[str], options: SubmitOptions, wanted: Attributes | None = None) -> JobFile:
    """Return the job of a command: one word is text for the shell, several are its arguments."""
    from gpusched.lists.submit import parse_command, refuse_empty

    jobs = parse_command(words[0] if len(words) == 1 else shlex.join(words), options)
    return refuse_empty(accept(jobs, "COMMAND", options.settings, wanted=wanted), "COMMAND")
