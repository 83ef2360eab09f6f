"""`gpusched set`: change settings of a queue while it is dispatched, and for its next starts."""

from __future__ import annotations

import click

from gpusched.cli.change.report import print_report
from gpusched.cli.options import find_queue, json_option, queue_option


@click.command(
    epilog="\b\nExamples:\n  gpusched set max-gpus=2\n  gpusched set max-gpus=1 --now\n"
    "  gpusched set mem.train=18G\n  gpusched set max-gpus="
)
@click.argument("settings", nargs=-1, metavar="[NAME[=VALUE]]...")
@queue_option
@click.option("--now", "at_once", is_flag=True, help="Stop the youngest jobs on surplus GPUs; they are queued again.")
@json_option()
def set(settings: tuple[str, ...], queue: str | None, at_once: bool, as_json: bool) -> int:
    """Change settings of a queue at once.

    They count for its dispatcher and its next starts until they are set again; NAME= takes one back. They count more
    than settings files, and less than the options of a new start. mem.TAG=SIZE is the memory of the jobs of a tag with
    mem=auto. Without a VALUE: show what counts; without NAME, all that is set.
    """
    from gpusched.operations.change.settings import set_settings, show_settings

    is_change = at_once or any("=" in word for word in settings)
    queue_dir = find_queue(queue, to_change=is_change)
    report = set_settings(queue_dir, settings, at_once=at_once) if is_change else show_settings(queue_dir, settings)
    return print_report(report, as_json=as_json)
