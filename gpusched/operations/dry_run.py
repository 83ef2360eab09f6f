"""`gpusched run --dry-run`: what a run would do to its queue, and what its first jobs would wait for. Makes nothing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusched.common.errors import EXIT_OK, GpuschedError
from gpusched.host.store import attempt_table, job_table, submission
from gpusched.operations import queues, status

if TYPE_CHECKING:
    from gpusched.config.settings import Settings
    from gpusched.core.jobs.reconcile import StoredJob
    from gpusched.core.model import Attempt, Dependency, Device, Requirements
    from gpusched.core.plan.snapshot import DeviceView
    from gpusched.host.queue.queue_dirs import QueueDir
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

    views: tuple[DeviceView, ...] = ()
    devices: tuple[Device, ...] = ()  # in the same order
    error: GpuschedError | None = None


def dry_run(place: QueueDir, jobs: JobFile, rules: SubmitOptions, *, as_json: bool) -> int:
    """Print what `gpusched run` would do. Raises what it would raise, once that is said."""
    store = queues.open_store(place) if place.exists() else None
    try:
        entries = _entries(store, jobs, rules)
        attempts = _attempts(store)
        counted = _counts(store)
    finally:
        if store is not None:
            store.close()
    box = _box(jobs, rules, {uuid for attempt in attempts for uuid in attempt.devices}, _shepherds(place, attempts))
    reasons = _reasons(entries, attempts, box, rules)
    if as_json:
        print(json.dumps(_document(place, entries, box, reasons), indent=2))
    else:
        from gpusched.views.tables import write

        write(sys.stdout, _page(place, entries, box, reasons, rules.settings, counted))
    if box.error is not None:
        raise box.error
    return EXIT_OK


# ---- the list --------------------------------------------------------------------------------------


def _entries(store: Store | None, jobs: JobFile, rules: SubmitOptions) -> list[DryRunJob]:
    from gpusched.core.jobs.reconcile import reconcile
    from gpusched.core.model import JobState

    held: list[StoredJob] = submission.stored_jobs(store) if store is not None else []
    rows = {row.id: row for row in job_table.jobs(store)} if store is not None else {}
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


def _attempts(store: Store | None) -> list[Attempt]:
    from gpusched.core.model import Attempt

    if store is None:
        return []
    return [
        Attempt(job.id, row.number, tuple(d.uuid for d in row.devices)) for job, row in attempt_table.running(store)
    ]


def _shepherds(place: QueueDir, attempts: list[Attempt]) -> dict[int, str]:
    """Pids of the shepherds of these attempts, and which each of them minds."""
    told = ((status.look(place, a.job_id, a.number).fields.get("pid", ""), f"{a.job_id}.{a.number}") for a in attempts)
    return {int(pid): name for pid, name in told if pid.isdigit()}


def _counts(store: Store | None) -> str:
    from gpusched.views.report import tally

    if store is None:
        return "a new queue"
    counts = tally(job_table.counts(store), job_table.count_removed(store))
    return "has " + ", ".join(f"{n} {word}" for word, n in counts.parts() if n) if counts.total else "is empty"


# ---- the GPUs --------------------------------------------------------------------------------------


def _box(jobs: JobFile, rules: SubmitOptions, occupied: set[str], shepherds: dict[int, str]) -> BoxReading:
    """One reading of the allowed GPUs, judged as if one check were enough; or why they can never serve the jobs.

    `occupied` are the devices that jobs of this queue have; what descends from one of the `shepherds` is ours there.
    """
    from gpusched import api
    from gpusched.common.text import clean
    from gpusched.core.model import MIB
    from gpusched.core.plan.availability import Availability, Criteria, fold
    from gpusched.core.plan.snapshot import DeviceView
    from gpusched.host.attempts.reaper import shepherds_of

    settings = rules.settings
    wanted = rules.gpus_wanted(jobs.specs)
    if wanted == 0:
        return BoxReading()
    try:
        opened = api.open_devices(settings, wanted)
        opened.close()
        api.check_jobs(jobs, rules, opened.first.devices)
        chosen = api.check_devices(settings, opened.first.devices, wanted)
    except GpuschedError as error:
        return BoxReading(error=error)
    criteria = Criteria(
        settings.gpu_mem_threshold * MIB, 1, settings.free_when == "idle", settings.allow_unreadable_memory
    )
    devices = {device.uuid: device for device in opened.first.devices}
    samples = {sample.uuid: sample for sample in opened.first.samples}
    claims = queues.claims(settings)
    views = []
    for uuid in chosen.uuids:
        device, mine = devices[uuid], uuid in occupied
        known = Availability(uuid)
        if uuid in samples:
            sample = samples[uuid]
            pids = [process.pid for process in sample.processes or ()] if mine else []
            ours = shepherds_of(pids, shepherds).keys()
            known = fold(known, device, sample, ours=ours, occupied=mine, criteria=criteria)
        holder = claims.holder(uuid) if claims is not None and not mine else None
        refused = f"claimed by {clean(holder.user)}'s gpusched" if holder is not None else ""
        label = f"MIG {uuid[:12]}" if device.is_mig else f"GPU {device.index}"
        view = DeviceView(
            known,
            device.total_bytes,
            label,
            refused=refused,
            name=device.name,
            group=device.group,
            reserved_bytes=device.reserved_bytes,
        )
        views.append(view)
    return BoxReading(tuple(views), devices=tuple(devices[uuid] for uuid in chosen.uuids))


def _reasons(
    entries: list[DryRunJob], attempts: list[Attempt], box: BoxReading, rules: SubmitOptions
) -> list[tuple[DryRunJob, str]]:
    """What the first jobs would do, by the dispatcher's own plan."""
    from gpusched.core.model import Job
    from gpusched.core.plan.planner import make_plan
    from gpusched.core.plan.snapshot import Claim, Snapshot, Start

    blocked = _blocked(entries)
    free = [e for e in entries if e.state == "queued" and e.needs is not None and e.job_id not in blocked]
    waiting = sorted(free, key=lambda e: -(e.needs.prio if e.needs else 0))[:FIRST_JOBS]
    jobs = tuple(
        Job(e.job_id, e.needs.gpus, mem_bytes=e.needs.mem_bytes, gpu_model=e.needs.gpu_model, tags=e.needs.tags)
        for e in waiting
        if e.needs is not None
    )
    plan = make_plan(Snapshot(0.0, rules.limits, box.views, jobs, tuple(attempts)))
    labels = {view.uuid: view.label for view in box.views}
    told = {job_id: _waits(reason.text) for job_id, reason in plan.reasons.items()}
    for action in plan.actions:
        if isinstance(action, Claim | Start):
            where = ", ".join(labels[uuid] for uuid in action.devices) or "the CPU"
            told[action.job_id] = f"starts on {where}"
    return [(entry, told[entry.job_id]) for entry in waiting if entry.job_id in told and box.error is None]


def _blocked(entries: list[DryRunJob]) -> set[int]:
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
    lines = [tables.line((short_path(place.path, queues.here()), tables.HEAD), f": {counted}{by}")]
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
    if box.views:
        free = sum(view.availability.state.value == "free" and not view.refused for view in box.views)
        wants = f"a run wants {settings.max_checks} in a row, {settings.poll_interval:g} s apart"
        lines += [
            tables.line(),
            tables.line(f"{free} of {count(len(box.views), 'GPU')} free at this one look ({wants})"),
        ]
        lines += tables.grid(["GPU", "NAME", "MEMORY", "STATE", ""], _device_rows(box), right="GPU MEMORY", indent=2)
    if reasons:
        lines += [tables.line(), tables.line("first:")]
        lines += [tables.line(f"  job {entry.job_id}, line {entry.line}: {text}") for entry, text in reasons]
    return lines


def _device_rows(box: BoxReading) -> list[Row]:
    from gpusched.host.gpus.board import BoardDevice
    from gpusched.views import report, tables

    rows: list[Row] = []
    for device, view in zip(box.devices, box.views, strict=True):
        shown = report.device_line(BoardDevice(device, view), 1)
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
                "uuid": device.uuid,
                "index": device.index,
                "name": device.name,
                "state": view.availability.state.value,
                "why": view.refused or view.availability.why,
            }
            for device, view in zip(box.devices, box.views, strict=True)
        ],
        "error": box.error.what if box.error is not None else None,
    }
