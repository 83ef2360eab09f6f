"""The effect that a run would have on its queue, and what its first jobs would wait for. Changes and prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpusched.common.errors import GpuschedError
from gpusched.core.jobs.reconcile import StoredJob, reconcile
from gpusched.core.model import AttemptRow, JobRow, Reading
from gpusched.core.plan import observe, preview
from gpusched.core.plan.board import Board
from gpusched.core.plan.preview import DryRun
from gpusched.core.plan.snapshot import Resident
from gpusched.host.gpus.claims import Claims
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table, submission
from gpusched.lists.jobfile import JobFile
from gpusched.lists.submit import SubmitOptions
from gpusched.operations import queues
from gpusched.operations.devices import check_devices, check_jobs, open_devices
from gpusched.operations.dispatchers import read_dispatcher

Running = Sequence[tuple[JobRow, AttemptRow]]


def dry_run(queue_dir: QueueDir, jobs: JobFile, options: SubmitOptions) -> DryRun:
    """Return the effect of a run with these jobs. Where the GPUs cannot be used for them, `error` says why."""
    rows: dict[int, JobRow] = {}
    running: Running = ()
    stored: Sequence[StoredJob] = ()
    counts, removed = None, 0
    if queue_dir.exists():
        with Store(queue_dir.database, read_only=True) as store:
            rows = {row.id: row for row in job_table.jobs(store)}
            running = list(attempt_table.running(store))
            stored = submission.stored_jobs(store)
            counts, removed = job_table.counts(store), job_table.count_removed(store)
    change = reconcile(jobs.specs, stored, complete=bool(jobs.specs), retry_failed=options.retry_failed)
    planned = preview.dry_run_jobs(change, rows, {spec: options.needs(spec) for spec in jobs.specs})
    dispatcher = read_dispatcher(queue_dir)
    reading, uuids, error = _read_devices(jobs, options)
    board = _first_board(reading, uuids, options, running, dispatcher.board)
    reasons = {}
    if error is None:
        attempts = [observe.open_attempt(job, row) for job, row in running]
        reasons = preview.first_reasons(planned, rows, attempts, board, queues.now())
    return DryRun(
        path=queue_dir.path,
        pid=dispatcher.pid,
        counts=counts,
        removed=removed,
        jobs=planned,
        board=board,
        max_checks=options.settings.max_checks,
        poll_interval_s=options.settings.poll_interval,
        reasons=reasons,
        error=error,
    )


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
        residents = tuple(
            Resident(job.id, job.mem_bytes) for job, row in running if uuid in {device.uuid for device in row.devices}
        )
        holder = None if residents else claims.holder(uuid)
        refused = observe.claimed_by(holder.user) if holder else claims.obstacle(uuid)
        tenancies[uuid] = observe.Tenancy(residents, refused=refused)
    criteria = observe.criteria(options.settings, max_checks=1)
    board = observe.first_board(reading, uuids, tenancies, criteria=criteria, limits=options.limits)
    own = {
        item.device.uuid: item
        for item in (published.devices if published is not None else ())
        if item.job_ids or item.view.held
    }
    return replace(board, devices=tuple(own.get(item.device.uuid, item) for item in board.devices))
