"""`gpusched status`, `logs` and `explain`: what a queue holds, what its jobs wrote, why and how. Changes nothing."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpusched.common.errors import EXIT_OK, GpuschedError
from gpusched.operations import queues
from gpusched.operations import status as queue_status

if TYPE_CHECKING:
    from gpusched.core.model import AttemptRow, JobRow
    from gpusched.host.queue.queue_dirs import QueueDir
    from gpusched.host.store import Store
    from gpusched.views.pages import QueueSummary, Scene
    from gpusched.views.tables import Line


# ---- status ----------------------------------------------------------------------------------------


@click.command(epilog="\b\nExamples:\n  gpusched status\n  gpusched status -q commands -v\n  gpusched status --json")
@queues.queue_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with -v all jobs, else at most the newest 1,000.")
@click.option("-v", "--verbose", is_flag=True, help="List every job.")
def status(queue: str | None, as_json: bool, verbose: bool) -> int:
    """Show the queues and their jobs.

    Without -q: all queues of yours on this host, those that are dispatched first, then the newest; a single one is
    shown in full. With -q or -v: one queue, its GPUs, what runs, what waits and why, what has failed.
    """
    from gpusched.config.settings import working_directory
    from gpusched.host.queue import queue_dirs

    working_directory()
    places = queue_dirs.list_queues() if queue is None and not verbose else []
    if len(places) > 1:
        return _status_of_all(places, as_json=as_json)
    place = places[0] if places else queues.find(queue)
    store, by, now = queues.open_store(place), queue_status.dispatching(place), queues.now()
    try:
        if as_json:
            found = queue_status.document(place, store, by, now, jobs=None if verbose else queue_status.JSON_LIMIT)
            _print_json([found])
        else:
            _print(_status_page(place, store, by, now, every_job=verbose))
    finally:
        store.close()
    return EXIT_OK


def _status_of_all(places: list[QueueDir], *, as_json: bool) -> int:
    from gpusched.views.pages import queue_list

    now = queues.now()
    known = [(queue_status.dispatching(place), place) for place in places]
    heads: list[QueueSummary] = []
    documents = []
    broken: list[str] = []
    for by, place in sorted(known, key=lambda pair: not pair[0].alive):
        try:
            store = queues.open_store(place)
        except GpuschedError as error:  # one broken queue hides no other
            broken.append(str(error))
            continue
        try:
            if as_json:
                documents.append(queue_status.document(place, store, by, now, jobs=0))
            else:
                heads.append(queue_status.head(place, store, by, now, queues.queue_name(place, places)))
        finally:
            store.close()
    if as_json:
        _print_json(documents)
    else:
        _print(queue_list(heads, now))
    for text in broken:
        click.echo(f"gpusched: warning: {text}", err=True)
    return EXIT_OK


def _status_page(
    place: QueueDir, store: Store, by: queue_status.Dispatching, now: float, *, every_job: bool
) -> list[Line]:
    from itertools import islice

    from gpusched.common.text import mask_secrets
    from gpusched.core.model import JobState
    from gpusched.host.store import job_table, meta_table
    from gpusched.views import pages, report, tables

    head = queue_status.head(place, store, by, now, place.name)
    board = by.board
    devices = [report.device_line(item, board.max_checks) for item in board.devices] if board is not None else []
    running = []
    views = queue_status.running_views(place, store)
    groups = [
        report.group_line(group, speed if by.alive else 0.0)
        for group, speed in queue_status.item_groups(store, views, now)
    ]
    for view in views:
        shown = report.running_line(view, now)
        sight = queue_status.look(place, view.job.id, view.attempt.number)
        if sight.word(by):
            elapsed_s = sight.elapsed_s(view.attempt.started_at, now)
            shown = replace(shown, mark=sight.word(by), elapsed_s=elapsed_s)
        running.append((shown, queue_status.last_log_line(place, view.attempt)))
    waiting = list(islice(job_table.jobs(store, [JobState.QUEUED, JobState.HELD]), pages.SHOWN_JOBS))
    held = {row.id: ("held", "held (`gpusched release`)") for row in waiting if row.state is JobState.HELD}
    reasons = queue_status.reasons(store, by, now) | held
    failed: list[tuple[JobRow, AttemptRow | None]] = []
    if not every_job:
        failed = [
            (row, _last(store, row)) for row in islice(job_table.jobs(store, [JobState.FAILED]), pages.SHOWN_JOBS)
        ]
    source = mask_secrets(os.fsdecode(meta_table.source(store) or b""))
    source = "of standard input" if source == "-" else source
    lines = pages.queue_page(
        _scene(place, store, now),
        head,
        source,
        board.at if board is not None else None,
        devices,
        running,
        waiting,
        reasons,
        failed,
        groups,
    )
    if every_job:
        lines += [tables.line(), *pages.job_table(((row, _last(store, row)) for row in job_table.jobs(store)), now)]
    return lines


def _last(store: Store, row: JobRow) -> AttemptRow | None:
    from gpusched.host.store import attempt_table

    attempts = attempt_table.attempts(store, row.id) if row.attempts else []
    return attempts[-1] if attempts else None


def _scene(place: QueueDir, store: Store, now: float) -> Scene:
    from gpusched.views.pages import Scene

    option = shlex.quote(queues.queue_name(place))
    return Scene(now, queues.here(), place.path, option, queues.resume_command(place, store))


def _print(lines: list[Line]) -> None:
    from gpusched.views.tables import write

    write(sys.stdout, lines)


def _print_json(queues: list[dict[str, object]]) -> None:
    click.echo(json.dumps({"schema_version": 1, "queues": queues}, indent=2))


# ---- explain ---------------------------------------------------------------------------------------


@click.command(epilog="\b\nExample:\n  gpusched explain 12\n  gpusched explain 12 -q commands")
@click.argument("job")
@queues.queue_option
def explain(job: str, queue: str | None) -> int:
    """Say why a job waits, or how it ended.

    A waiting job is explained by the dispatcher's own plan. For each attempt: when, on which GPU, how it ended and
    why, what may help, where its log is.
    """
    from gpusched.host.store import attempt_table, job_table
    from gpusched.views.pages import job_page

    place = queues.find(queue)
    store = queues.open_store(place)
    try:
        row = job_table.get(store, queues.parse_job(job, store))
        scene = _scene(place, store, queues.now())
        _print(job_page(scene, row, attempt_table.attempts(store, row.id), _now_text(place, store, row, scene)))
    finally:
        store.close()
    return EXIT_OK


def _now_text(place: QueueDir, store: Store, row: JobRow, scene: Scene) -> list[str]:
    """What goes on with the job at this moment."""
    from gpusched.core.jobs.lifecycle import CAUSE_FAILURES
    from gpusched.core.jobs.readiness import CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED
    from gpusched.core.model import JobState
    from gpusched.host.store import attempt_table

    by = queue_status.dispatching(place)
    goes_on = [] if by.alive else [f"no dispatcher works on this queue; to go on: {scene.resume}"]
    if row.cause in (CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED) and row.state in (JobState.HELD, JobState.CANCELLED):
        lead = "it was not needed" if row.cause == CAUSE_NOT_NEEDED else f"it is {row.state.value}"
        return [f"{lead}: it {queue_status.waits_for(store, row)}"]
    if row.state is JobState.HELD:
        why = ": jobs of its tag failed at once" if row.cause == CAUSE_FAILURES else ""
        return [f"it is held{why}"]
    if row.state is JobState.QUEUED:
        kind, why = queue_status.reasons(store, by, scene.now, until=row.id).get(row.id, ("", ""))
        return goes_on + ([f"why   {why}"] if by.alive or kind == "dependency" else [])
    if row.state is not JobState.RUNNING:
        return []
    sight = queue_status.look(place, row.id, row.attempts)
    texts = ["it is being stopped: TERM, and KILL after the grace time"] if row.cancel_requested_at is not None else []
    if sight.fields.get("leftovers"):
        from gpusched.views.report import leftover_text

        texts.append(f"its command has ended, but left {leftover_text(sight.fields['leftovers'])}")
    if sight.word(by):
        texts.append(f"it {sight.word(by)}")
    attempts = attempt_table.attempts(store, row.id)
    tail = queue_status.last_log_line(place, attempts[-1]) if attempts else ""
    return [*texts, *([f"last line: {tail}"] if tail else []), *goes_on]


# ---- logs ------------------------------------------------------------------------------------------


@click.command(epilog="\b\nExamples:\n  gpusched logs 12\n  gpusched logs 12 -f -n 20\n  gpusched logs 12 --attempt 1")
@click.argument("job")
@queues.queue_option
@click.option("-f", "--follow", is_flag=True, help="Go on as the job writes, through all its attempts, to its end.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="LINES", help="Print only the last LINES lines.")
@click.option("--err", "stderr", is_flag=True, help="Print stderr, of a job with --split-streams.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Print attempt N.  [default: the newest]")
def logs(job: str, queue: str | None, follow: bool, lines: int | None, stderr: bool, attempt: int | None) -> int:
    """Print what a job wrote.

    The bytes are printed as they came: secrets that a job itself prints are not masked here.
    """
    from gpusched.operations.logs import Log

    place = queues.find(queue)
    store = queues.open_store(place)
    try:
        log = Log(place, store, queues.parse_job(job, store), stderr=stderr, number=attempt)
        log.print(sys.stdout.buffer, lines=lines, follow=follow)
    finally:
        store.close()
    return EXIT_OK
