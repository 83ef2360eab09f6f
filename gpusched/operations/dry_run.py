"""The effect that a run would have on its queue, and what its first jobs would wait for. Changes and prints nothing."""

from __future__ import annotations

from collections.abc import Sequence

from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings
from gpusched.core.jobs.reconcile import reconcile
from gpusched.core.model import AttemptRow, JobRow, Reading
from gpusched.core.plan import observe, preview
from gpusched.core.plan.board import Board
from gpusched.core.plan.preview import DryRun
from gpusched.core.plan.snapshot import Resident
from gpusched.host.attempts.reaper import shepherds_of
from gpusched.host.queue.queue_dir import QueueDir
from gpusched.host.store import Store, attempt_table, job_table, submission
from gpusched.lists.jobfile import JobFile
from gpusched.lists.submit import SubmitOptions
from gpusched.operations import queues
from gpusched.operations.devices import check_devices, check_jobs, open_devices
from gpusched.operations.dispatchers import read_dispatcher
from gpusched.operations.status import read_attempt

Running = Sequence[tuple[JobRow, AttemptRow]]


def dry_run(queue_dir: QueueDir, jobs: JobFile, options: SubmitOptions) -> DryRun:
    """Return the effect of a run with these jobs. Where the GPUs cannot be used for them, `error` says why."""
    rows: dict[int, JobRow] = {}
    running: Running = ()
    held, counts, removed = [], None, 0
    if queue_dir.exists():
        with Store(queue_dir.database, read_only=True) as store:
            rows = {row.id: row for row in job_table.jobs(store)}
            running = list(attempt_table.running(store))
            held, counts, removed = (
                submission.stored_jobs(store),
                job_table.counts(store),
                job_table.count_removed(store),
            )
    change = reconcile(jobs.specs, held, complete=bool(jobs.specs), retry_failed=options.retry_failed)
    planned = preview.dry_run_jobs(change, rows, {spec: options.needs(spec) for spec in jobs.specs})
    board, error = _first_board(queue_dir, jobs, options, running)
    reasons = {}
    if error is None:
        attempts = [observe.open_attempt(job, row) for job, row in running]
        reasons = preview.first_reasons(planned, rows, attempts, board, queues.now())
    return DryRun(
        path=queue_dir.path,
        pid=queue_dir.dispatcher() if counts is not None else None,
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


def _first_board(
    queue_dir: QueueDir, jobs: JobFile, options: SubmitOptions, running: Running
) -> tuple[Board, GpuschedError | None]:
    """Read the allowed GPUs once, as if one check were enough; and say why they cannot serve the jobs, if so."""
    wanted = options.gpus_wanted(jobs.specs)
    reading, uuids, error = Reading(0.0, 0.0), tuple[str, ...](), None
    if wanted:
        try:
            with open_devices(options.settings, wanted) as devices:
                first = devices.first
            check_jobs(jobs, options, first.devices)
            uuids = check_devices(options.settings, first.devices, wanted).uuids
            reading = first
        except GpuschedError as refusal:
            error = refusal
    tenancies = _tenancies(queue_dir, reading, options.settings, running)
    criteria = observe.criteria(options.settings, max_checks=1)
    return observe.first_board(reading, uuids, tenancies, criteria=criteria, limits=options.limits), error


def _tenancies(
    queue_dir: QueueDir, reading: Reading, settings: Settings, running: Running
) -> dict[str, observe.Tenancy]:
    """Return the use of each device: the jobs of this queue that are on it, and the claims of others."""
    published = read_dispatcher(queue_dir).board if queue_dir.exists() else None
    views = {item.device.uuid: item.view for item in published.devices} if published is not None else {}
    pids = _pids(queue_dir, reading, running)
    claims = queues.claims(settings)
    found = {}
    for uuid in (device.uuid for device in reading.devices):
        residents = tuple(
            Resident(job.id, job.mem_bytes)
            for job, row in running
            if any(uuid == device.uuid for device in row.devices)
        )
        view = views.get(uuid)
        held = view is not None and view.held
        if view is not None and residents and view.residents:
            residents = view.residents  # the dispatcher knows how much they use
        holder = claims.holder(uuid) if claims is not None and not residents and not held else None
        refused = observe.claimed_by(holder.user) if holder is not None else ""
        found[uuid] = observe.Tenancy(residents, pids.get(uuid, frozenset()), held, refused)
    return found


def _pids(queue_dir: QueueDir, reading: Reading, running: Running) -> dict[str, frozenset[int]]:
    """Return the processes on each device that belong to an attempt that has it, by UUID."""
    devices, shepherds = {}, {}
    for job, row in running:
        pid = read_attempt(queue_dir, job.id, row.number).fields.get("pid", "")
        if pid.isdigit():
            name = f"{job.id}.{row.number}"
            shepherds[int(pid)] = name
            devices[name] = {device.uuid for device in row.devices}
    found = {}
    for sample in reading.samples:
        owners = shepherds_of([process.pid for process in sample.processes or ()], shepherds) if shepherds else {}
        found[sample.uuid] = frozenset(pid for pid, name in owners.items() if sample.uuid in devices[name])
    return found
