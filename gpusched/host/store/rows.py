"""Conversion between rows of the database and the values of core/model. Runs no query."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gpusched.core.model import AttemptRow, DeviceUse, JobRow, JobState, Outcome, OutcomeKind, Requirements, Usage

JOB = (
    "id, command, line, cwd, state, cause, gpus, time_limit_s, retries, tries, losses, attempts, not_before, "
    "submitted_at, first_started_at, ended_at, cancel_requested_at, avoid, above_bytes, mem_bytes, stated_mem_bytes, "
    "prio, name, tags, gpu_model, env, blocked, position, shape, git, listed, items"
)
USAGE = "samples, peak_memory_bytes, mean_memory_bytes, mean_utilisation, energy_j, peak_device_bytes, by_device"
ATTEMPT = (
    "job_id, number, started_at, ended_at, outcome, exit_code, signal, cause, note, log, error_log, devices, "
    f"{USAGE}, max_rss_bytes, cpu_s, progress"
)


def columns(needs: Requirements) -> tuple[object, ...]:
    """Return the columns of a job that its requirements fill, in the order of the statements of `submission`."""
    env = "[]"  # of most jobs
    if needs.env:
        env = json.dumps([[name.decode("latin-1"), value.decode("latin-1")] for name, value in needs.env])
    return (
        needs.cwd,
        needs.gpus,
        needs.time_limit_s,
        needs.retries,
        needs.mem_bytes,
        needs.stated_mem_bytes or needs.mem_bytes,
        needs.prio,
        needs.name,
        ",".join(needs.tags),
        needs.gpu_model,
        env,
        needs.git,
        needs.items,
        needs.shape,
    )


def usage_columns(usage: Usage) -> tuple[object, ...]:
    """Return the values of USAGE."""
    return (
        usage.samples,
        usage.peak_memory_bytes,
        usage.mean_memory_bytes,
        usage.mean_utilisation,
        usage.energy_j,
        usage.peak_device_bytes,
        usage.by_device,
    )


def job_row(row: tuple) -> JobRow:  # type: ignore[type-arg]
    fields = list(row)
    fields[4] = JobState(row[4])
    fields[17] = frozenset(row[17].split(",")) if row[17] else frozenset()
    fields[23] = tuple(row[23].split(",")) if row[23] else ()
    if row[25] != "[]":
        fields[25] = tuple((a.encode("latin-1"), b.encode("latin-1")) for a, b in json.loads(row[25]))
    else:
        fields[25] = ()
    fields[26] = bool(row[26])
    fields[30] = bool(row[30])
    return JobRow(*fields)


def attempt_row(row: tuple) -> AttemptRow:  # type: ignore[type-arg]
    outcome = None
    if row[4] is not None:
        outcome = Outcome(OutcomeKind(row[4]), exit_code=row[5], signal=row[6], cause=row[7], note=row[8])
    return AttemptRow(
        job_id=row[0],
        number=row[1],
        started_at=row[2],
        ended_at=row[3],
        outcome=outcome,
        log=row[9],
        error_log=row[10],
        devices=tuple(DeviceUse(*item) for item in json.loads(row[11])),
        usage=Usage(row[12], row[13], row[14], row[15], row[16], row[17], by_device=bool(row[18])),
        max_rss_bytes=row[19],
        cpu_s=row[20],
        progress=row[21],
    )


def devices_text(devices: Sequence[DeviceUse]) -> str:
    return json.dumps([[d.uuid, d.index, d.name, d.free_bytes] for d in devices])
