"""What every verb that has jobs run does with them: look at the GPUs, submit, dispatch, say how it ended.

Makes no job itself: the verbs do, each from what it is given.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from gpusched.cli.options import settings_options
from gpusched.common.errors import EXIT_DISPATCHED_ELSEWHERE, EXIT_INTERRUPTED, GpuschedError
from gpusched.config.layers import LoadedSettings

if TYPE_CHECKING:
    from gpusched.api import Devices, Queue, Source
    from gpusched.core.model import Device
    from gpusched.dispatcher import Observer
    from gpusched.dispatcher.feed import Feed
    from gpusched.host.queue.queue_dir import QueueDir
    from gpusched.lists.jobfile import JobFile
    from gpusched.lists.submit import SubmitOptions

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS = (
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


# What a verb takes where no layer of the settings says anything.
OWN_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "shard": {"split_streams": True, "on_dep_fail": "hold"},
}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options that all these verbs have."""

    loaded: LoadedSettings
    retry_failed: bool = False
    dry_run: bool = False
    as_json: bool = False
    verbose: bool = False
    quiet: bool = False


def work_options(callback: F) -> F:
    """Give a command these options; the callback gets them as the argument `asked`."""

    @settings_options(*SETTINGS)
    @click.option("--retry-failed", is_flag=True, help="Queue the failed jobs of this list again.")
    @click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing.")
    @click.option("--json", "as_json", is_flag=True, help="Print the summary (or the dry run) as JSON.")
    @click.option("-v", "--verbose", is_flag=True, help="Print every hint, and log more.")
    @click.option("-q", "--quiet", is_flag=True, help="Print only what asks for action, and the summary.")
    @functools.wraps(callback)
    def wrapper(
        *args: Any,
        loaded: LoadedSettings,
        retry_failed: bool,
        dry_run: bool,
        as_json: bool,
        verbose: bool,
        quiet: bool,
        **kwargs: Any,
    ) -> Any:
        asked = RunOptions(loaded, retry_failed, dry_run, as_json, verbose, quiet)
        return callback(*args, asked=asked, **kwargs)

    return cast(F, wrapper)


def with_defaults(loaded: LoadedSettings, verb: str) -> LoadedSettings:
    """The settings with the defaults of this verb."""
    own = {name: value for name, value in OWN_DEFAULTS.get(verb, {}).items() if loaded.origins[name] == "default"}
    return replace(loaded, settings=replace(loaded.settings, **own))


def say(text: str) -> None:
    """One line for people, beside what goes to stdout."""
    click.echo(f"gpusched: {text}", err=True)


def rules_for(asked: RunOptions, *, force: bool = False) -> SubmitOptions:
    """How jobs are read and what each needs, by the options alone."""
    from gpusched.lists.submit import SubmitOptions

    settings = asked.loaded.settings
    if settings.setup and not os.path.isfile(settings.setup):
        raise GpuschedError("there is no such file", where=f"--setup {settings.setup}")
    return SubmitOptions(settings, os.fsencode(os.getcwd()), force, asked.retry_failed)


def find_place(source: Source, asked: RunOptions, rules: SubmitOptions) -> tuple[QueueDir, SubmitOptions]:
    """Where the queue of this source lies, made or not, and the rules with the settings that hold there."""
    from gpusched import api

    place = api.place_for(source, rules.settings)
    return place, replace(rules, settings=api.settings_for(place, asked.loaded))


def accept(jobs: JobFile, name: str, asked: RunOptions) -> JobFile:
    """The same jobs, with what is doubtful in them told. Raises GpuschedError where they cannot be right."""
    from gpusched.lists.findings import SHOWN_PER_CODE, render_findings
    from gpusched.lists.submit import refused

    jobs = refused(jobs, name)
    if jobs.findings and not asked.quiet and not asked.as_json:
        limit = len(jobs.findings) if asked.verbose else SHOWN_PER_CODE
        click.echo(render_findings(jobs.findings, name, limit=limit), err=True)
    return jobs


def refuse_unmet(jobs: JobFile, place: QueueDir, data: bytes, name: str) -> None:
    """Refuse jobs that wait for what is neither in the list nor in its queue, or for each other."""
    from gpusched import api
    from gpusched.lists import dependencies
    from gpusched.lists.submit import refusal

    wrong = dependencies.check(jobs.specs, data, known=api.names_in(place))
    if wrong:
        raise refusal(wrong, name)


def check_devices(jobs: JobFile, rules: SubmitOptions, looked: tuple[Devices | None, tuple[Device, ...]]) -> None:
    """Refuse what these devices can never serve, and close them then."""
    from gpusched import api

    devices, known = looked
    if devices is None and not known:
        return
    try:
        api.check_jobs(jobs, rules, known)
    except BaseException:
        if devices is not None:
            devices.close()
        raise


def work(
    source: Source,
    jobs: JobFile,
    rules: SubmitOptions,
    asked: RunOptions,
    devices: Devices | None,
    *,
    complete: bool = True,
    around: Callable[[Queue], AbstractContextManager[object]] = nullcontext,
    feed: Feed | None = None,
    follow: bool = False,
    end: Callable[[Queue, int], None] | None = None,
) -> int:
    """Submit the jobs to the queue of their source, dispatch until all have ended, print the end; the exit code.

    `complete`: what is not among the jobs has left the list. The jobs are submitted within `around`, which writes what
    they need into the queue's directory. `end` prints the end in the place of the usual summary.
    """
    from gpusched import api

    try:
        queue = api.Queue.for_file(source, rules.settings)
    except BaseException:
        if devices is not None:
            devices.close()
        raise
    click.get_current_context().call_on_close(queue.close)
    try:
        api.set_up_log(queue.place, "DEBUG" if asked.verbose else rules.settings.log_level)
        with around(queue):
            queue.submit(jobs, rules, complete=complete)
    except BaseException:
        if devices is not None:
            devices.close()
        raise
    observer = _observer(queue.place.path, as_json=asked.as_json, quiet=asked.quiet)
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
    _print_end(queue, code, asked, end)
    return code


def _print_end(queue: Queue, code: int, asked: RunOptions, end: Callable[[Queue, int], None] | None) -> None:
    """The summary. A terminal or a reader that is gone changes nothing of how the jobs ended, nor the exit code."""
    from gpusched.cli.main import drop
    from gpusched.operations.summary import print_summary

    try:
        if end is not None:
            end(queue, code)
        else:
            print_summary(queue, code, as_json=asked.as_json)
        sys.stdout.flush()
    except OSError:
        drop(sys.stdout)


def _open_devices(jobs: JobFile, rules: SubmitOptions) -> Devices:
    """The devices, opened, that these jobs can use."""
    from gpusched import api

    devices = api.open_devices(rules.settings, rules.gpus_wanted(jobs.specs))
    check_devices(jobs, rules, (devices, devices.first.devices))
    return devices


def _observer(queue: str, *, as_json: bool, quiet: bool) -> Observer:
    from gpusched.views.lines import EventLines

    out = sys.stderr if as_json else sys.stdout
    if out.isatty() and not quiet:
        from gpusched.views.area import can_be_drawn_over
        from gpusched.views.live import LiveView

        if can_be_drawn_over(out):
            return LiveView(out, queue)
    return EventLines(out, quiet=quiet)
