"""`gpusched run --dry-run`: what a run would do to its queue, and what its first jobs would wait for. Makes nothing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpusched.common.errors import EXIT_OK, GpuschedError
from gpusched.core.plan import observe
from gpusched.host.store import attempt_table, job_table, submission
from gpusched.operations import queues
from gpusched.operations.dispatchers import read_dispatcher
from gpusched.operations.status import read_attempt

if TYPE_CHECKING:
    from gpusched.config.settings import Settings
    from gpusched.core.jobs.reconcile import StoredJob
    from gpusched.core.model import Attempt, AttemptRow, Dependency, Job, JobRow, Reading, Requirements
    from gpusched.core.plan.board import Board
    from gpusched.core.plan.observe import Tenancy
    from gpusched.host.queue.queue_dir import QueueDir
    from gpusched.host.store import Store
    from gpusched.lists.jobfile import JobFile
    from gpusched.lists.submit import SubmitOptions
    from gpusched.views.tables import Line, Row

FIRST_JOBS = 8  # waiting jobs whose reason is told


@dataclass(frozen=True, slots=True)
class DryRunJob:
    """One job of the list, or one that is no longer in it. `what`: add, keep, requeue or cancel."""

    job_id: int  # for a new job the id that it would get
    line: int
    what: str
    state: str  # that it would have
    command: bytes
    needs: Requirements | None = None  # of a job that is in the list
    after: tuple[Dependency, ...] = ()


@dataclass(frozen=True, slots=True)
class BoxReading:
    """The GPUs as they are now. `error` says why they cannot be used."""

    board: Board
    error: GpuschedError | None = None


def dry_run(place: QueueDir, jobs: JobFile, rules: SubmitOptions, *, as_json: bool) -> int:
    """Print what `gpusched run` would do. Raises what it would raise, once that is said."""
    store = queues.open_store(place) if place.exists() else None
    try:
        rows = {row.id: row for row in job_table.jobs(store)} if store is not None else {}
        running = list(attempt_table.running(store)) if store is not None else []
        entries = _entries(store, rows, jobs, rules)
        counted = _counts(store)
    finally:
        if store is not None:
            store.close()
    box = _box(place, jobs, rules, running)
    attempts = [observe.open_attempt(job, row) for job, row in running]
    reasons = [] if box.error is not None else first_jobs(entries, rows, attempts, box.board, queues.now())
    if as_json:
        print(json.dumps(_document(place, entries, box, reasons), indent=2))
    else:
        from gpusched.views.tables import write

        write(sys.stdout, _page(place, entries, box, reasons, rules.settings, counted))
    if box.error is not None:
        raise box.error
    return EXIT_OK


# ---- the list --------------------------------------------------------------------------------------


def _entries(store: Store | None, rows: Mapping[int, JobRow], jobs: JobFile, rules: SubmitOptions) -> list[DryRunJob]:
    from gpusched.core.jobs.reconcile import reconcile
    from gpusched.core.model import JobState

    held: list[StoredJob] = submission.stored_jobs(store) if store is not None else []
    change = reconcile(jobs.specs, held, complete=bool(jobs.specs), retry_failed=rules.retry_failed)
    entries: list[tuple[int, DryRunJob]] = []
    queued = JobState.QUEUED.value
    for n, (spec, position) in enumerate(change.add, len(rows) + 1):
        after = spec.attributes.after
        entries.append((position, DryRunJob(n, spec.line, "add", queued, spec.command, rules.needs(spec), after)))
    for job_id, spec, position in change.keep:
        again = job_id in change.requeue
        state = queued if again else rows[job_id].state.value
        what = "requeue" if again else "keep"
        after = spec.attributes.after
        entries.append((position, DryRunJob(job_id, spec.line, what, state, spec.command, rules.needs(spec), after)))
    found = [entry for _, entry in sorted(entries, key=lambda pair: pair[0])]
    for job_id in change.cancel:
        row = rows[job_id]
        found.append(DryRunJob(job_id, row.line, "cancel", JobState.CANCELLED.value, row.command))
    return found


def _counts(store: Store | None) -> str:
    from gpusched.views.report import tally

    if store is None:
        return "a new queue"
    counts = tally(job_table.counts(store), job_table.count_removed(store))
    return "has " + ", ".join(f"{n} {word}" for word, n in counts.parts() if n) if counts.total else "is empty"


# ---- the GPUs --------------------------------------------------------------------------------------


def _box(
    place: QueueDir, jobs: JobFile, rules: SubmitOptions, running: Sequence[tuple[JobRow, AttemptRow]]
) -> BoxReading:
    """Read the allowed GPUs once, as if one check were enough; or say why they can never serve the jobs."""
    from gpusched import api
    from gpusched.core.model import Reading

    wanted = rules.gpus_wanted(jobs.specs)
    reading, error = Reading(0.0, 0.0), None
    uuids: tuple[str, ...] = ()
    if wanted:
        try:
            opened = api.open_devices(rules.settings, wanted)
            opened.close()
            api.check_jobs(jobs, rules, opened.first.devices)
            uuids = api.check_devices(rules.settings, opened.first.devices, wanted).uuids
            reading = opened.first
        except GpuschedError as refusal:
            error = refusal
    tenancies = _tenancies(place, reading, rules.settings, running)
    criteria = observe.criteria(rules.settings, max_checks=1)
    board = observe.first_board(reading, uuids, tenancies, criteria=criteria, limits=rules.limits)
    return BoxReading(board, error)


def _tenancies(
    place: QueueDir, reading: Reading, settings: Settings, running: Sequence[tuple[JobRow, AttemptRow]]
) -> dict[str, Tenancy]:
    """The jobs of the queue that are on each device, and the claims of others."""
    from gpusched.core.plan.snapshot import Resident

    published = read_dispatcher(place).board if place.exists() else None
    counted = {item.device.uuid: item.view for item in published.devices} if published is not None else {}
    pids = _pids(place, reading, running)
    claims = queues.claims(settings)
    found = {}
    for uuid in (device.uuid for device in reading.devices):
        residents = tuple(
            Resident(job.id, job.mem_bytes) for job, row in running if uuid in {device.uuid for device in row.devices}
        )
        view = counted.get(uuid)
        held = view is not None and view.held
        if view is not None and residents:
            residents = view.residents or residents
        holder = claims.holder(uuid) if claims is not None and not residents and not held else None
        refused = observe.claimed_by(holder.user) if holder is not None else ""
        found[uuid] = observe.Tenancy(residents, pids.get(uuid, frozenset()), held, refused)
    return found


def _pids(place: QueueDir, reading: Reading, running: Sequence[tuple[JobRow, AttemptRow]]) -> dict[str, frozenset[int]]:
    """The processes on each device that belong to an attempt that has it."""
    from gpusched.host.attempts.reaper import shepherds_of

    devices, shepherds = {}, {}
    for job, row in running:
        pid = read_attempt(place, job.id, row.number).fields.get("pid", "")
        if pid.isdigit():
            name = f"{job.id}.{row.number}"
            shepherds[int(pid)] = name
            devices[name] = {device.uuid for device in row.devices}
    found = {}
    for sample in reading.samples:
        owners = shepherds_of([process.pid for process in sample.processes or ()], shepherds) if shepherds else {}
        found[sample.uuid] = frozenset(pid for pid, name in owners.items() if sample.uuid in devices[name])
    return found


def first_jobs(
    entries: Sequence[DryRunJob],
    rows: Mapping[int, JobRow],
    attempts: Sequence[Attempt],
    board: Board,
    now: float,
) -> list[tuple[DryRunJob, str]]:
    """Say of the first waiting jobs where they start or what they wait for, by the dispatcher's own plan."""
    from gpusched.core.plan.planner import make_plan

    blocked = _blocked(entries)
    free = [entry for entry in entries if entry.state == "queued" and entry.job_id not in blocked]
    waiting = sorted(free, key=lambda entry: -(entry.needs.prio if entry.needs else 0))[:FIRST_JOBS]
    jobs = [_waiting(entry, rows.get(entry.job_id)) for entry in waiting]
    snapshot = observe.snapshot(board, now, waiting=jobs, attempts=attempts)
    plan = make_plan(snapshot)
    texts = {job_id: _waits(reason.text) for job_id, reason in plan.reasons.items()}
    texts |= {job_id: f"starts on {where}" for job_id, where in observe.start_labels(plan, snapshot.devices).items()}
    return [(entry, texts[entry.job_id]) for entry in waiting if entry.job_id in texts]


def _waiting(entry: DryRunJob, row: JobRow | None) -> Job:
    """The job as the plan would see it once the list is submitted: a job that is kept keeps what it has learnt."""
    from gpusched.core.model import Job, Requirements

    needs = entry.needs or Requirements()
    new = Job(
        entry.job_id,
        needs.gpus,
        mem_bytes=needs.mem_bytes if needs.gpus else 0,
        gpu_model=needs.gpu_model,
        tags=needs.tags,
    )
    if row is None:
        return new
    if needs.gpus and row.mem_bytes and row.stated_mem_bytes == (needs.stated_mem_bytes or needs.mem_bytes):
        new = replace(new, mem_bytes=row.mem_bytes)  # it may have grown after an out-of-memory
    if entry.what == "requeue":
        return new
    return replace(new, not_before=row.not_before, tries=row.tries, avoid=row.avoid, above_bytes=row.above_bytes)


def _blocked(entries: Sequence[DryRunJob]) -> set[int]:
    """The jobs that others of the list still keep from starting."""
    from gpusched.core.jobs.readiness import (
        DependencyTally,
        JobIndex,
        ListedJob,
        Readiness,
        UnknownReference,
        readiness,
    )
    from gpusched.core.model import JobState

    if not any(entry.after for entry in entries):
        return set()
    states = {e.job_id: JobState(e.state) for e in entries}
    directory = JobIndex(ListedJob(e.job_id, e.needs.name, e.needs.tags) for e in entries if e.needs is not None)
    blocked = set()
    for entry in entries:
        for dependency in entry.after:
            try:
                ((kind, ups),) = directory.resolve(entry.job_id, [dependency])
            except UnknownReference:  # a job whose line is gone: the queue knows it
                continue
            if readiness([(kind, DependencyTally.of([states[up] for up in ups]))]) is not Readiness.READY:
                blocked.add(entry.job_id)
    return blocked


def _waits(text: str) -> str:
    return text if text.startswith("waits") else f"waits: {text}"


# ---- telling ---------------------------------------------------------------------------------------

_WOULD = {"add": "add", "keep": "keep", "requeue": "queue again", "cancel": "cancel: its line is gone"}


def _page(
    place: QueueDir,
    entries: list[DryRunJob],
    box: BoxReading,
    reasons: list[tuple[DryRunJob, str]],
    settings: Settings,
    counted: str,
) -> list[Line]:
    from gpusched.views import tables
    from gpusched.views.words import command_text, count, short_path

    pid = place.dispatcher() if place.exists() else None
    by = f"; pid {pid} dispatches it and would take the list" if pid is not None else ""
    lines = [tables.line((short_path(place.path, queues.current_directory()), tables.HEAD), f": {counted}{by}")]
    kinds = Counter(entry.what for entry in entries)
    parts = [
        f"{_WOULD[what].split(':')[0]} {n}" for what, n in sorted(kinds.items(), key=lambda k: list(_WOULD).index(k[0]))
    ]
    lines += [tables.line("would " + ", ".join(parts) if parts else "would take lines as they arrive"), tables.line()]
    rows: list[Row] = []
    for entry in entries:
        would = f"keep ({entry.state})" if entry.what == "keep" else _WOULD[entry.what]
        rows.append([str(entry.job_id), str(entry.line), would, command_text(entry.command)])
    lines += tables.grid(["JOB", "LINE", "WOULD", "COMMAND"], rows, right="JOB LINE")
    if box.board.devices:
        views = [item.view for item in box.board.devices]
        free = sum(view.availability.state.value == "free" and not view.refused for view in views)
        wants = f"a run wants {settings.max_checks} in a row, {settings.poll_interval:g} s apart"
        lines += [
            tables.line(),
            tables.line(f"{free} of {count(len(views), 'GPU')} free at this one look ({wants})"),
        ]
        lines += tables.grid(["GPU", "NAME", "MEMORY", "STATE", ""], _device_rows(box), right="GPU MEMORY", indent=2)
    if reasons:
        lines += [tables.line(), tables.line("first:")]
        lines += [tables.line(f"  job {entry.job_id}, line {entry.line}: {text}") for entry, text in reasons]
    return lines


def _device_rows(box: BoxReading) -> list[Row]:
    from gpusched.views import report, tables

    rows: list[Row] = []
    for item in box.board.devices:
        shown = report.device_line(item, 1)
        rows.append([shown.label, shown.name, shown.memory, (shown.word, tables.TONES[shown.tone]), shown.detail])
    return rows


def _document(
    place: QueueDir, entries: list[DryRunJob], box: BoxReading, reasons: list[tuple[DryRunJob, str]]
) -> dict[str, Any]:
    from gpusched.core.documents import shown_command

    told = {entry.job_id: text for entry, text in reasons}
    return {
        "queue": place.path,
        "exists": place.exists(),
        "jobs": [
            {
                "id": entry.job_id,
                "line": entry.line,
                "would": entry.what,
                "state": entry.state,
                "command": shown_command(entry.command),
                "first": told.get(entry.job_id),
            }
            for entry in entries
        ],
        "devices": [
            {
                "uuid": item.device.uuid,
                "index": item.device.index,
                "name": item.device.name,
                "state": item.view.availability.state.value,
                "why": item.view.refused or item.view.availability.why,
            }
            for item in box.board.devices
        ],
        "error": box.error.what if box.error is not None else None,
    }
