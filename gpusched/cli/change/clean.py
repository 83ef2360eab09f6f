"""`gpusched clean`: remove finished jobs, their logs, and queues that nobody needs any more."""

from __future__ import annotations

import sys

import click

from gpusched.cli.options import find_queue, queue_option, say, value_option
from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.common.quantities import parse_duration
from gpusched.operations import queues
from gpusched.operations.change import clean as operation


def _parse_age(text: str) -> float:
    if text.strip().isdecimal():
        raise ValueError(f"a time with its unit, such as {text.strip()}d")
    return parse_duration(text)


@click.command(epilog="\b\nExamples:\n  gpusched clean --older-than 30d\n  gpusched clean --all --older-than 90d --yes")
@queue_option
@click.option("--all", "every", is_flag=True, help="Clean all your queues on this host.")
@value_option("--older-than", "age_s", "Remove only what ended longer ago: 30d, 12h.", _parse_age)
@click.option("--with-files", is_flag=True, help="Remove what jobs kept in GPUSCHED_ATTEMPT_DIR, too.")
@click.option("--forget", is_flag=True, help="Let the lines of removed jobs run again.")
@click.option("--dry-run", is_flag=True, help="Show what would go, and remove nothing.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
def clean(queue: str | None, every: bool, age_s: float | None, dry_run: bool, yes: bool, **more: bool) -> int:
    """Remove finished jobs, their logs and dead queues.

    Shows what goes, and asks first. Failed and cancelled jobs are finished, too. A job that another one depends on
    stays as long as that one. Lines of a FILE whose jobs were removed do not run again. A queue is removed when no job
    is left in it, nor anything else that may be missed.
    """
    if every and queue is not None:
        raise click.UsageError("Either --all or -q, not both.")
    wishes = operation.CleanWishes(queues.now() - (age_s or 0.0), **more)
    code, texts = EXIT_OK, {}
    for queue_dir in queues.known_queues() if every else [find_queue(queue, to_change=True)]:
        try:
            texts[queue_dir] = operation.describe_clean(queue_dir, wishes)
        except GpuschedError as error:  # one broken queue keeps no other from being cleaned
            code = EXIT_SOME_FAILED
            say(f"warning: {error}")
    click.echo("\n".join(text for lines in texts.values() for text in lines) or "there is nothing to clean")
    if any(texts.values()) and not dry_run:
        if not (yes or _agrees()):
            say("nothing was removed")
            return EXIT_SOME_FAILED
        for queue_dir in [queue_dir for queue_dir, lines in texts.items() if lines]:
            operation.clean(queue_dir, wishes)
        click.echo("removed")
    return code


def _agrees() -> bool:
    """Ask the user. Raises GpuschedError where nobody can be asked."""
    if not sys.stdin.isatty():
        raise GpuschedError("nobody can be asked here: nothing was removed", hint="--yes removes without asking")
    return click.confirm("Remove this?", err=True)
