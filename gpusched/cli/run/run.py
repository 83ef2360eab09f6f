"""`gpusched run`: submit a file of commands and dispatch until all have ended."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpusched.cli.options import SettingsCommand
from gpusched.cli.run.source import STREAM, JobSource, await_command, read_given, source_arguments
from gpusched.common.errors import GpuschedError
from gpusched.operations.run import (
    RunOptions,
    accept,
    check_devices,
    find_place,
    refuse_unmet,
    rules_for,
    work,
    work_options,
)

if TYPE_CHECKING:
    from gpusched.api import Devices
    from gpusched.dispatcher.feed import Feed
    from gpusched.host.queue.queue_dir import QueueDir
    from gpusched.lists.submit import SubmitOptions


@click.command(
    cls=SettingsCommand,
    epilog="Example: gpusched run -c 'python train.py --lr {lr}' -p lr=0.1,0.2",
)
@source_arguments
@work_options
@click.option("--force", is_flag=True, help="Go on although lines look wrong.")
@click.option("--follow", is_flag=True, help="Stay at the end, for lines added later.")
def run(
    file: str | None,
    command: str | None,
    parameters: tuple[str, ...],
    each: str | None,
    asked: RunOptions,
    force: bool,
    follow: bool,
) -> int:
    """Run a file of commands on the GPUs that are free.

    FILE has one shell command a line, or is a YAML job file; - reads lines from
    stdin. The same command again goes on: jobs that have succeeded are skipped.
    """
    from gpusched import api

    rules = rules_for(asked, force=force)
    given = read_given(file, command, parameters, each)
    jobs = accept(given.parse(rules), given.name, asked)
    if not jobs.specs and given.source != STREAM:
        hint = "one shell command a line; lines with # are skipped"
        raise GpuschedError("holds no command", where=given.name, hint=hint)
    place, rules = find_place(given.source, asked, rules)
    refuse_unmet(jobs, place, given.data, given.name)
    if asked.dry_run:
        from gpusched.operations.dry_run import dry_run as show

        return show(place, jobs, rules, as_json=asked.as_json)
    rules = replace(rules, dirs=api.job_dirs(place, rules))
    looked = api.look(place, rules.settings, rules.gpus_wanted(jobs.specs))
    check_devices(jobs, rules, looked)
    begun = b"" if follow else _begin_stream(given, place, looked[0])
    # a stream has more to come, and a sweep with other values than before takes none of those back
    complete = isinstance(given.source, str) and given.source != STREAM
    feed = _feed(given, rules, begun)
    return work(given.source, jobs, rules, asked, looked[0], complete=complete, feed=feed, follow=follow)


def _begin_stream(given: JobSource, place: QueueDir, devices: Devices | None) -> bytes:
    """The beginning of a stream, up to its first command; nothing where its queue has work without it.

    Raises GpuschedError for a stream without a command, and closes the devices; then no queue was made.
    """
    from gpusched import api

    if given.source != STREAM or api.has_work(place):
        return b""
    try:
        return await_command()
    except BaseException:
        if devices is not None:
            devices.close()
        raise


def _feed(given: JobSource, rules: SubmitOptions, begun: bytes) -> Feed | None:
    """Where later jobs come from: the file as it is edited, or the stream."""
    from gpusched.dispatcher.feed import FileFeed, StreamFeed
    from gpusched.lists.jobfile import LineFeed
    from gpusched.lists.submit import read

    settings = rules.settings
    if given.source == STREAM:
        lines = LineFeed(force=rules.force, strip_gpu_env=settings.strip_gpu_env, gpus=settings.gpus_per_job)
        return StreamFeed(0, lines, begun)
    if not isinstance(given.source, str) or given.found is None:
        return None
    path = os.path.abspath(given.source)
    return FileFeed(path, lambda text: read(text, rules, path), given.data, given.found)
