"""The attempts of jobs: booked, closed, read, and what they have used so far."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpusched.common.errors import stored_value
from gpusched.core.jobs.job import reshape
from gpusched.core.jobs.lifecycle import JobEvent, Verdict
from gpusched.core.model import (
    NOBODY_SEEN,
    NOTHING_USED,
    AttemptRow,
    DeviceUse,
    ForeignUse,
    JobRow,
    JobState,
    Outcome,
    OutcomeKind,
    Usage,
)
from gpusched.host.store import job_table, transitions
from gpusched.host.store.connection import Store
from gpusched.host.store.rows import JOB, job_row

_USAGE_FIELDS = [field.name for field in fields(Usage)]
_OUTCOME = ("outcome", "exit_code", "signal", "cause", "note")
_COLUMNS = (
    *("job_id", "number", "started_at", "ended_at", "log", "error_log", "devices", "max_rss_bytes", "cpu_s"),
    *("progress", *_OUTCOME, *_USAGE_FIELDS),
)
ATTEMPT = ", ".join(_COLUMNS)
_OPEN = "job_id = ? AND number = ? AND ended_at IS NULL"


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt: how, when, and what it used."""

    outcome: Outcome
    ended_at: float
    usage: Usage = NOTHING_USED
    max_rss_bytes: int | None = None
    cpu_s: float | None = None
    progress: str = ""


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """Wishes for the next attempt of a job, if there is one."""

    avoid: frozenset[str] = frozenset()  # UUIDs of devices to pass over
    above_bytes: int = 0  # wants more free memory than this
    mem_bytes: int | None = None  # its budget; None: the same as before


NO_WISHES = NextAttempt()


def start(
    store: Store, job_id: int, started_at: float, log: str, error_log: str, devices: Sequence[DeviceUse]
) -> int | None:
    """Book the next attempt and the job as running; return the attempt's number, or None if the job is not queued."""
    with store.transaction():
        row = store.row("SELECT state, attempts, first_started_at FROM jobs WHERE id = ?", (job_id,))
        if row is None or row[0] != JobState.QUEUED.value:
            return None
        number = int(row[1]) + 1
        first = started_at if row[2] is None else row[2]
        transitions.move(store, job_id, JobEvent.STARTED, attempts=number, first_started_at=first)
        store.insert(
            "attempts",
            job_id=job_id,
            number=number,
            started_at=started_at,
            log=log,
            error_log=error_log,
            devices=devices_text(devices),
        )
        return number


def close(
    store: Store,
    job_id: int,
    number: int,
    end: AttemptEnd,
    verdict: Verdict,
    wishes: NextAttempt = NO_WISHES,
    *,
    now: float,
) -> JobState:
    """Close an open attempt with its end, and move its job as the verdict says; return the job's new state."""
    outcome = end.outcome
    with store.transaction():
        store.update(
            "attempts",
            _OPEN,
            (job_id, number),
            ended_at=end.ended_at,
            outcome=outcome.kind.value,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            cause=outcome.cause,
            note=verdict.note or outcome.note,
            max_rss_bytes=end.max_rss_bytes,
            cpu_s=end.cpu_s,
            progress=end.progress,
            **_usage_columns(end.usage),
        )
        if verdict.event is JobEvent.SUCCEEDED:
            columns = {"cause": "", "ended_at": end.ended_at, "tries": verdict.tries}
            return transitions.move(store, job_id, verdict.event, **columns)
        job = job_table.get(store, job_id)
        budget = job.mem_bytes if wishes.mem_bytes is None else wishes.mem_bytes
        ends = verdict.event in (JobEvent.FAILED, JobEvent.CANCELLED)
        return transitions.move(
            store,
            job_id,
            verdict.event,
            cause=outcome.cause,
            ended_at=end.ended_at if ends else None,
            tries=verdict.tries,
            losses=verdict.losses,
            not_before=now + verdict.delay_s if verdict.delay_s else 0.0,
            avoid=",".join(sorted(wishes.avoid)),
            above_bytes=wishes.above_bytes,
            mem_bytes=budget,
            shape=reshape(job.shape, budget, wishes.above_bytes),
        )


def blame_shutdown(store: Store, since: float) -> list[int]:
    """Queue again, as interrupted, the jobs that failed since `since` while everything was being ended; their ids."""
    with store.transaction():
        rows = store.rows(
            "SELECT j.id, a.number FROM jobs j JOIN attempts a ON a.job_id = j.id AND a.number = j.attempts "
            "WHERE j.state = 'failed' AND j.origin <> 'exec' AND j.ended_at >= ? "
            "AND a.outcome IN ('exited', 'signalled')",
            (since,),
        )
        for job_id, number in rows:
            key, note = (job_id, number), "ended with the shutdown"
            store.update("attempts", "job_id = ? AND number = ?", key, outcome="interrupted", note=note)
            transitions.queue_again(store, job_id)
    return [job_id for job_id, _ in rows]


def save_usage(store: Store, job_id: int, number: int, usage: Usage, progress: str) -> None:
    """Store what an open attempt has used so far, for the next dispatcher."""
    with store.transaction():
        store.update("attempts", _OPEN, (job_id, number), progress=progress, **_usage_columns(usage))


def attempts(store: Store, job_id: int) -> list[AttemptRow]:
    """Return the attempts of a job, the first one first."""
    query = f"SELECT {ATTEMPT} FROM attempts WHERE job_id = ? ORDER BY number"
    return [_attempt_row(row) for row in store.rows(query, (job_id,))]


def newest(store: Store, job_ids: Sequence[int]) -> dict[int, AttemptRow]:
    """Return the newest attempt of each of these jobs that has had one, by the id of the job."""
    these = "SELECT id, attempts FROM jobs WHERE id IN (SELECT value FROM json_each(?))"
    query = f"SELECT {ATTEMPT} FROM attempts WHERE (job_id, number) IN ({these})"
    return {row.job_id: row for row in map(_attempt_row, store.stream(query, (json.dumps(job_ids),)))}


def running(store: Store) -> list[tuple[JobRow, AttemptRow]]:
    """Return every running job with its open attempt."""
    opened = map(_attempt_row, store.rows(f"SELECT {ATTEMPT} FROM attempts WHERE ended_at IS NULL"))
    attempts_by_job = {attempt.job_id: attempt for attempt in opened}
    jobs = map(job_row, store.rows(f"SELECT {JOB} FROM jobs WHERE state = 'running' ORDER BY id"))
    return [(job, attempts_by_job[job.id]) for job in jobs if job.id in attempts_by_job]


def interactive(store: Store) -> list[tuple[JobRow, AttemptRow]]:
    """Return every interactive job that runs, with its open attempt: no dispatcher has started it."""
    return [each for each in running(store) if each[0].origin == "exec"]


def last_of_name(store: Store, name: str) -> AttemptRow | None:
    """Return the newest attempt of all jobs of this name."""
    query = "SELECT id FROM jobs JOIN attempts ON job_id = id WHERE name = ? ORDER BY started_at DESC LIMIT 1"
    job_id = store.scalar(query, (name,))
    return None if job_id is None else attempts(store, job_id)[-1]


def spent(store: Store) -> Iterator[tuple[str, AttemptRow]]:
    """Yield every attempt, each with the tags of its job."""
    columns = ", ".join(f"attempts.{name}" for name in _COLUMNS)
    for tags, *row in store.stream(f"SELECT tags, {columns} FROM attempts JOIN jobs ON id = job_id"):
        yield tags, _attempt_row(row)


# ---- rows -------------------------------------------------------------------------------------------


@stored_value()
def _attempt_row(columns: Sequence[Any]) -> AttemptRow:
    """Return the attempt of a row of the columns ATTEMPT."""
    values = dict(zip(_COLUMNS, columns, strict=True))
    kind, *ending = (values.pop(name) for name in _OUTCOME)
    usage = {name: values.pop(name) for name in _USAGE_FIELDS}
    usage |= {name: bool(usage[name]) for name in ("by_device", "by_report")}
    usage["foreign_use"] = _read_foreign_use(usage["foreign_use"])
    devices = tuple(DeviceUse(*device) for device in json.loads(values.pop("devices")))
    outcome = None if kind is None else Outcome(OutcomeKind(kind), *ending)
    return AttemptRow(**values, outcome=outcome, devices=devices, usage=Usage(**usage))


def _usage_columns(usage: Usage) -> dict[str, Any]:
    return {**asdict(usage), "foreign_use": json.dumps(asdict(usage.foreign_use)) if usage.foreign_use.samples else ""}


@stored_value()
def _read_foreign_use(text: str) -> ForeignUse:
    if not text:
        return NOBODY_SEEN
    values = json.loads(text)
    return ForeignUse(**{**values, "who": tuple(values.get("who", ()))})


def devices_text(devices: Sequence[DeviceUse]) -> str:
    return json.dumps([[d.uuid, d.index, d.name, d.free_bytes] for d in devices])
