"""The effect that a run would have on its queue, and what its first jobs would wait for. Changes and prints nothing.

The list is submitted to a copy of the queue, so what becomes of its jobs is what the submission itself decides.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.core.documents import shown_command
from gpusched.core.jobs.reconcile import QueueChange
from gpusched.core.model import Attempt, AttemptRow, JobRow, Reading
from gpusched.core.plan import observe
from gpusched.core.plan.board import Board, device_document
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Resident
from gpusched.dispatcher.ticket_book import sharing_of
from gpusched.host.gpus.claims import Claims
from gpusched.host.gpus.tickets import read_tickets
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.lists.jobfile import JobFile
from gpusched.lists.submit import SubmitOptions, criteria, submit
from gpusched.operations import queues
from gpusched.operations.box.devices import check_devices, check_jobs, open_devices
from gpusched.operations.queues import read_dispatcher
from gpusched.views.values import DryRun as DryRun

FIRST_JOBS = 8  # waiting jobs whose reasons are shown

Running = Sequence[tuple[JobRow, AttemptRow]]


def dry_run(queue_dir: QueueDir, jobs: JobFile, options: SubmitOptions, *, complete: bool = True) -> DryRun:
    """Return the effect of a run with these jobs; if `complete`, other jobs that wait in the queue are cancelled.

    Where the GPUs cannot be used for them, `error` says why.
    """
    is_new = not queue_dir.exists()
    with _copy(queue_dir) as store:
        counts, newest = job_table.current_counts(store), sum(job_table.counts(store).values())
        change = submit(store, jobs.specs, options, queues.now(), complete=complete and bool(jobs.specs))
        planned = _planned(job_table.jobs(store), change, newest=newest)
        ready = (row for row in job_table.waiting(store) if not row.blocked)
        first = list(islice(ready, FIRST_JOBS))
        running: Running = list(attempt_table.running(store))
    dispatcher = read_dispatcher(queue_dir)
    reading, uuids, error = _read_devices(jobs, options)
    board = _first_board(reading, uuids, options, running, dispatcher.board)
    attempts = [observe.open_attempt(job, row) for job, row in running]
    return DryRun(
        path=queue_dir.path,
        pid=dispatcher.pid,
        counts=None if is_new else counts,
        jobs=planned,
        board=board,
        max_checks=options.settings.max_checks,
        poll_interval_s=options.settings.poll_interval,
        reasons=first_reasons(first, attempts, board, queues.now()) if error is None else {},
        error=error,
        cleaned=len(jobs.specs) - len(change.add) - len(change.keep),
    )


@contextmanager
def _copy(queue_dir: QueueDir) -> Iterator[Store]:
    """Open a copy of the queue's database that is removed at the end; an empty one if there is no queue."""
    with tempfile.TemporaryDirectory(prefix="gpusched-") as directory:
        path = os.path.join(directory, "queue.db")
        if queue_dir.exists():
            with queues.open_store(queue_dir) as original:
                original.execute("VACUUM INTO ?", (path,))
        with Store(path, create=True) as store:
            yield store


def _planned(rows: Iterable[JobRow], change: QueueChange, newest: int) -> list[tuple[JobRow, str]]:
    """Return each job that the submission concerns, and what it does; those that it cancels come last.

    `newest` is the last job before it.
    """
    changes = {job_id: "keep" for job_id, _, _ in change.keep} | dict.fromkeys(change.requeue, "requeue")
    changes |= dict.fromkeys(change.cancel, "cancel")
    planned = [(row, changes.get(row.id, "add")) for row in rows if row.id > newest or row.id in changes]
    return sorted(planned, key=lambda job: job[1] == "cancel")


def first_reasons(waiting: Sequence[JobRow], attempts: Iterable[Attempt], board: Board, now: float) -> dict[int, str]:
    """Return where these jobs start or what they wait for, by job id, from the dispatcher's own plan."""
    snapshot = observe.snapshot(board, now, waiting=waiting, attempts=attempts)
    plan = make_plan(snapshot)
    texts = {job_id: reason.sentence for job_id, reason in plan.reasons.items()}
    texts |= {job_id: f"starts on {where}" for job_id, where in observe.start_labels(plan, snapshot.devices).items()}
    return {row.id: texts[row.id] for row in waiting if row.id in texts}


def document(dry_run: DryRun) -> dict[str, Any]:
    """Return the dry run as a JSON document."""
    return {
        "queue": dry_run.path,
        "exists": dry_run.counts is not None,
        "jobs": [
            {
                "id": row.id,
                "line": row.line,
                "would": change,
                "state": row.state.value,
                "command": shown_command(row.command),
                "first": dry_run.reasons.get(row.id),
            }
            for row, change in dry_run.jobs
        ],
        "devices": [device_document(item, None) for item in dry_run.board.devices],
        "error": dry_run.error.what if dry_run.error is not None else None,
    }


# ---- the GPUs --------------------------------------------------------------------------------------


def _read_devices(jobs: JobFile, options: SubmitOptions) -> tuple[Reading, tuple[str, ...], GpuschedError | None]:
    """Read the GPUs once; return the allowed ones too, and why they cannot serve the jobs, if so."""
    wanted = options.gpus_wanted(jobs.specs)
    nothing = Reading(0.0, 0.0)
    if not wanted:
        return nothing, (), None
    try:
        with open_devices(options.settings, wanted) as devices:
            first = devices.first
        check_jobs(jobs, options, first.devices)
        return first, check_devices(options.settings, first.devices, wanted).uuids, None
    except GpuschedError as error:
        return nothing, (), error


def _first_board(
    reading: Reading, uuids: Sequence[str], options: SubmitOptions, running: Running, published: Board | None
) -> Board:
    """Return the allowed GPUs as if one check were enough; those of the queue's dispatcher as it has published them."""
    tenancies = {}
    claims = Claims(options.settings.claims_dir)
    for uuid in uuids:
        own = [job for job, row in running if uuid in {device.uuid for device in row.devices}]
        residents = tuple(Resident(job.id, job.budget_bytes) for job in own)
        holder = None if residents else claims.holder(uuid)
        refused = observe.claimed_by(holder.user, holder.queue) if holder else claims.obstacle(uuid)
        tenancies[uuid] = observe.Tenancy(residents, refused=refused)
    board = observe.first_board(
        reading, uuids, tenancies, criteria=criteria(options.settings, max_checks=1), limits=options.limits
    )
    devices = published.devices if published is not None else ()
    counted = {item.device.uuid: item for item in devices if item.job_ids or item.view.held}
    board = replace(board, devices=tuple(counted.get(item.device.uuid, item) for item in board.devices))
    if published is not None:
        return replace(board, learned=published.learned, sharing=published.sharing)
    holders = {uuid: holder for uuid in uuids if (holder := claims.holder(uuid)) is not None}
    sharing = sharing_of(read_tickets(claims), holders, options.settings, yields={}, own=None, now_s=0.0)
    return replace(board, sharing=sharing)
