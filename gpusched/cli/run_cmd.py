"""`gpusched run`: submit a file of commands and dispatch until all have ended."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpusched.cli.given import STREAM, Given, read_given, source_arguments
from gpusched.cli.options import SettingsCommand, settings_options
from gpusched.config import Loaded
from gpusched.errors import EXIT_DISPATCHED_ELSEWHERE, EXIT_INTERRUPTED, GpuschedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpusched.api import Devices, Queue
    from gpusched.core.jobfile import JobFile
    from gpusched.dispatcher import Observer
    from gpusched.dispatcher.feed import Feed
    from gpusched.host.queuedir import QueueDir
    from gpusched.submit import Rules


@click.command(
    cls=SettingsCommand,
    epilog="\b\nExamples:\n  gpusched run commands.txt\n  gpusched run sweep.yaml --max-gpus 2 --gpu-list 4 5 6 7\n"
    "  gpusched run -c 'python train.py --lr {lr} --seed {seed}' -p lr=1e-3,1e-4 -p seed=0..4\n"
    "  make-commands | gpusched run -",
)
@source_arguments
@settings_options(
    "max_gpus",
    "gpu_list",
    "gpu_mem_threshold",
    "max_checks",
    "poll_interval",
    "free_when",
    "gpus_per_job",
    "cpu_jobs",
    "time_limit",
    "retries",
    "grace",
    "log_dir",
    "visible_devices",
    "setup",
    "shell",
    "leftovers",
    "max_jobs_per_gpu",
    "gpu_strategy",
    "max_bypass",
    "tag_max_gpus",
    "max_fails",
    "on_dep_fail",
    "idle_timeout",
    "idle_action",
    "snapshot",
    "split_streams",
    "allow_unreadable_memory",
    "strip_gpu_env",
    "simulate",
)
@click.option("--force", is_flag=True, help="Go on although lines look wrong; set-up lines are left out.")
@click.option("--retry-failed", is_flag=True, help="Queue the failed jobs of this file again.")
@click.option("--follow", is_flag=True, help="Stay when all has ended, for lines added later.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary (or the dry run) as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Print every hint, and log more.")
@click.option("-q", "--quiet", is_flag=True, help="Print only what asks for action, and the summary.")
def run(
    file: str | None,
    command: str | None,
    parameters: tuple[str, ...],
    each: str | None,
    loaded: Loaded,
    force: bool,
    retry_failed: bool,
    follow: bool,
    dry_run: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Run a file of commands on the GPUs that are free.

    FILE holds one shell command a line, or is a YAML job file; - reads standard input and starts jobs as lines
    arrive. The same command again resumes: what succeeded is skipped, what is new or was interrupted runs.
    """
    from gpusched import api
    from gpusched.submit import Rules

    settings = loaded.settings
    rules = Rules(settings, os.fsencode(os.getcwd()), force, retry_failed)
    if settings.setup and not os.path.isfile(settings.setup):
        raise GpuschedError("there is no such file", where=f"--setup {settings.setup}")
    given = read_given(file, command, parameters, each)
    jobs = _parse(given, rules, verbose=verbose, quiet=quiet or as_json)
    place = api.place_for(given.source, settings)
    settings = api.settings_for(place, loaded)
    rules = replace(rules, settings=settings)
    _refuse_unmet(given, jobs, api.names_in(place))
    if dry_run:
        from gpusched.cli.dry_run import dry_run as show

        return show(place, jobs, rules, as_json=as_json)
    rules = replace(rules, dirs=api.job_dirs(place, rules))
    devices = _check(place, jobs, rules)
    try:
        queue = api.Queue.for_file(given.source, settings)
    except BaseException:
        if devices is not None:
            devices.close()
        raise
    click.get_current_context().call_on_close(queue.close)
    api.set_up_log(queue.place, "DEBUG" if verbose else settings.log_level)
    # a stream has more to come, and a sweep with other values than before takes none of those back
    queue.submit(jobs, rules, complete=isinstance(given.source, str) and given.source != STREAM)
    feed = _feed(given, rules)
    observer = _observer(queue.place.path, as_json=as_json, quiet=quiet)

    def say(text: str) -> None:
        click.echo(f"gpusched: {text}", err=True)

    try:
        code = queue.dispatch(
            rules,
            lambda: devices if devices is not None else _open_devices(jobs, rules),
            feed=feed,
            observer=observer,
            follow=follow,
            waiting=say,
        )
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        close = getattr(observer, "close", None)
        if close is not None:
            close()
    if code == EXIT_DISPATCHED_ELSEWHERE:
        pid = queue.place.dispatcher()
        say(f"{queue.place.path} is being dispatched by pid {pid}, which has taken this list; leaving (75)")
        return code
    _print_end(queue, code, as_json=as_json)
    return code


def _print_end(queue: Queue, code: int, *, as_json: bool) -> None:
    """The summary. A terminal or a reader that is gone changes nothing of how the jobs ended, nor the exit code."""
    from gpusched.cli.main import drop
    from gpusched.cli.summary import print_summary

    try:
        print_summary(queue, code, as_json=as_json)
        sys.stdout.flush()
    except OSError:
        drop(sys.stdout)


def _parse(given: Given, rules: Rules, *, verbose: bool, quiet: bool) -> JobFile:
    from gpusched.core.findings import SHOWN_PER_CODE, render_findings
    from gpusched.submit import refused

    jobs = refused(given.parse(rules), given.name)
    if jobs.findings and not quiet:
        limit = len(jobs.findings) if verbose else SHOWN_PER_CODE
        click.echo(render_findings(jobs.findings, given.name, limit=limit), err=True)
    if not jobs.specs and given.source != STREAM:
        hint = "one shell command a line; lines with # are skipped"
        raise GpuschedError("holds no command", where=given.name, hint=hint)
    return jobs


def _refuse_unmet(given: Given, jobs: JobFile, known: Collection[str]) -> None:
    """Refuse jobs that wait for what is neither in the list nor in its queue, or for each other."""
    from gpusched.core import dependencies
    from gpusched.submit import refusal

    wrong = dependencies.check(jobs.specs, given.data, known=known)
    if wrong:
        raise refusal(wrong, given.name)


def _check(place: QueueDir, jobs: JobFile, rules: Rules) -> Devices | None:
    """Refuse what this box can never meet before anything is made; the opened devices, unless others have them."""
    from gpusched import api

    if place.exists() and place.dispatcher() is not None:
        known = api.known_devices(place)
        if known:
            api.check_jobs(jobs, rules, known)
        return None
    return _open_devices(jobs, rules)


def _open_devices(jobs: JobFile, rules: Rules) -> Devices:
    """The devices, opened, that these jobs can use."""
    from gpusched import api

    devices = api.open_devices(rules.settings, rules.gpus_wanted(jobs.specs))
    try:
        api.check_jobs(jobs, rules, devices.first.devices)
    except BaseException:
        devices.close()
        raise
    return devices


def _feed(given: Given, rules: Rules) -> Feed | None:
    """Where later jobs come from: the file as it is edited, or the stream."""
    from gpusched.core.jobfile import LineFeed
    from gpusched.dispatcher.feed import FileFeed, StreamFeed
    from gpusched.submit import read

    settings = rules.settings
    if given.source == STREAM:
        lines = LineFeed(force=rules.force, strip_gpu_env=settings.strip_gpu_env, gpus=settings.gpus_per_job)
        return StreamFeed(0, lines)
    if not isinstance(given.source, str) or given.found is None:
        return None
    path = os.path.abspath(given.source)
    return FileFeed(path, lambda text: read(text, rules, path), given.data, given.found)


def _observer(queue: str, *, as_json: bool, quiet: bool) -> Observer:
    from gpusched.views.lines import EventLines

    out = sys.stderr if as_json else sys.stdout
    if out.isatty() and not quiet and os.environ.get("TERM", "dumb") != "dumb":
        from gpusched.views.live import LiveView

        return LiveView(out, queue)
    return EventLines(out, quiet=quiet)
