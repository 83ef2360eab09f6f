"""A run in front of a person: findings, the view of the dispatcher, the summary at the end."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

from gpusched.cli.main import drop
from gpusched.cli.options import print_json, print_page, say
from gpusched.cli.run.options import RunOptions
from gpusched.common.errors import EXIT_OK, GpuschedError

if TYPE_CHECKING:
    from gpusched.core.jobs.group_summary import GroupDetails
    from gpusched.dispatcher import Observer
    from gpusched.dispatcher.jobs.feed import Feed
    from gpusched.operations.run.run import RunQueue, RunSession
    from gpusched.views.lines import EventLines
    from gpusched.views.terminal.live import LiveView
    from gpusched.views.values import DryRun


def session(
    options: RunOptions,
    *,
    feed: Feed | None = None,
    follow: bool = False,
    read_details: Callable[[RunQueue], GroupDetails] | None = None,
) -> RunSession:
    """Return the surroundings of a run on this terminal. `read_details` adds results of a feature to the summary."""
    from gpusched.operations.run.run import RunSession

    _import_the_end(options)
    return RunSession(
        watch=lambda queue: _watch(queue, options, feed),
        notify=say,
        summarize=partial(
            print_summary,
            as_json=options.as_json,
            read_details=read_details,
            has_report=options.loaded.settings.report,
        ),
        log_level="DEBUG" if options.verbose else "INFO",
        feed=feed,
        follow=follow,
        quiet=options.quiet and not (options.as_json or options.loaded.settings.report),
    )


def _import_the_end(options: RunOptions) -> None:
    """Import what is needed only at the end: the package, or a library, may be replaced before that."""
    import gpusched.operations.look.summary
    import gpusched.operations.run.stored

    if options.loaded.settings.report:
        import gpusched.operations.look.story
    if not options.as_json:
        import gpusched.views.summary  # noqa: F401
        from gpusched.views.tables import line, write

        write(io.StringIO(), [line("")])  # the library imports more when it draws


def _watch(queue: RunQueue, options: RunOptions, feed: Feed | None) -> AbstractContextManager[Observer | None]:
    """Return the observer for this terminal, pipe or file; none where that is the log, which has all events anyway."""
    with suppress(OSError, ValueError):
        if os.path.samestat(os.fstat(sys.stdout.fileno()), os.stat(queue.queue_dir.log)):
            return nullcontext()
    return closing(_observer(queue, options, feed))


def _observer(queue: RunQueue, options: RunOptions, feed: Feed | None) -> LiveView | EventLines:
    """Return the live view on a terminal, else one line per event. It takes keys, unless jobs are typed there."""
    from gpusched.dispatcher.jobs.feed import StreamFeed
    from gpusched.views.lines import EventLines

    out = sys.stderr if options.as_json else sys.stdout
    if out.isatty() and not options.quiet:
        from gpusched.operations.look.status import read_last_line
        from gpusched.views.terminal.area import can_be_drawn_over
        from gpusched.views.terminal.keyboard import Keyboard
        from gpusched.views.terminal.live import LiveView

        if can_be_drawn_over(out):
            has_keys = sys.stdin is not None and sys.stdin.isatty() and not isinstance(feed, StreamFeed)
            keyboard = Keyboard(sys.stdin.fileno()) if has_keys else None
            return LiveView(out, queue.queue_dir.path, partial(read_last_line, queue.queue_dir), keyboard)
    return EventLines(out, quiet=options.quiet)


def _write_report(queue: RunQueue) -> str:
    """Write the report of the queue, and return its path; nothing if that fails, which is said."""
    from gpusched.operations.look.story import write_report

    try:
        return write_report(queue.queue_dir)
    except (GpuschedError, OSError) as error:
        say(f"warning: no report was written: {error}")
        return ""


def print_summary(
    queue: RunQueue,
    code: int,
    *,
    as_json: bool,
    read_details: Callable[[RunQueue], GroupDetails] | None = None,
    has_report: bool = False,
) -> None:
    """Print one block for people, or one JSON document. `read_details` adds results of a feature.

    A terminal or a reader that is gone does not change the exit code.
    """
    from gpusched.operations.look.summary import summarize_run, summary_document
    from gpusched.operations.run.stored import stored_settings

    try:
        details = None if read_details is None else read_details(queue)
        summary = summarize_run(queue.queue_dir, queue.store, code, every_failure=as_json, details=details)
        has_report = has_report or stored_settings(queue.store).report  # a later start may have asked for it
        summary = summary._replace(report=_write_report(queue) if has_report else "")
        if as_json:
            print_json(summary_document(summary))
        else:
            from gpusched.views.summary import summary_page

            print_page(summary_page(summary))
        sys.stdout.flush()
    except OSError:
        drop(sys.stdout)


def print_dry_run(dry_run: DryRun, options: RunOptions) -> int:
    """Print a dry run. Raises the error that the run itself would raise."""
    if options.as_json:
        from gpusched.operations.run.dry_run import document

        print_json(document(dry_run))
    else:
        from gpusched.operations.queues import current_directory
        from gpusched.views.dry_run import page

        print_page(page(dry_run, current_directory()))
    if dry_run.error is not None:
        raise dry_run.error
    return EXIT_OK
