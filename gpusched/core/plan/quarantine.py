"""Find the devices that fail every job at once while others do not, and keep jobs away from them for a while.

A device with three different jobs in a row that failed within ten seconds is suspect. Nothing more starts there while
a job on another device, which is not suspect, can still tell if the fault is the device's; once one that began with
the first of them or later has succeeded, or one has run for a minute, the device is quarantined. So jobs that fail
everywhere quarantine nothing, and neither do bad ones that follow good ones in a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpusched.core.jobs.lifecycle import CROWDED_OOM
from gpusched.core.model import Attempt, OutcomeKind, Sample

FAILURES, QUICK_S, LONG_S = 3, 10.0, 60.0
TOGETHER_S = 0.5  # jobs that begin within so long began with each other
PAUSE_FIRST_S, PAUSE_MAX_S = 300.0, 3600.0  # doubles until a job succeeds there


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """The evidence about one device. Moments are monotonic seconds."""

    failed: tuple[int, ...] = ()  # different jobs that failed on it in a row, at once
    since_s: float = 0.0  # when the first of them began
    last_s: float = 0.0  # the newest of them
    good_s: float = float("-inf")  # when a job began on it that has succeeded, or has run for long
    uncorrectable: int | None = None  # memory errors at the newest reading
    times: int = 0  # that it was quarantined in a row
    until_s: float = float("-inf")  # the end of the quarantine
    why: str = ""  # it is in quarantine

    @property
    def is_suspect(self) -> bool:
        return len(self.failed) >= FAILURES


Records = Mapping[str, DeviceRecord]  # by UUID
UNKNOWN = DeviceRecord()


def note_end(records: Records, attempt: Attempt, now_s: float) -> Records:
    """Return the records after the end of an attempt."""
    outcome, began_s = attempt.outcome, now_s - attempt.lasted_s
    before = {uuid: records.get(uuid, UNKNOWN) for uuid in attempt.devices}
    if outcome is not None and (outcome.ok or attempt.lasted_s >= LONG_S):
        return {**records, **{uuid: _with_success(record, began_s, now_s) for uuid, record in before.items()}}
    is_own_end = outcome is not None and outcome.kind in (OutcomeKind.EXITED, OutcomeKind.SIGNALLED)
    if outcome is None or not is_own_end or outcome.cause == CROWDED_OOM:
        return records
    if attempt.lasted_s >= QUICK_S:
        return {**records, **{uuid: replace(record, failed=()) for uuid, record in before.items()}}
    job_id = attempt.job.id
    return {**records, **{uuid: _with_failure(record, job_id, began_s, now_s) for uuid, record in before.items()}}


def _with_success(record: DeviceRecord, began_s: float, now_s: float) -> DeviceRecord:
    times = record.times if record.until_s > now_s else 0  # a job that was there already ends no quarantine
    return replace(record, failed=(), good_s=began_s, times=times)


def _with_failure(record: DeviceRecord, job_id: int, began_s: float, now_s: float) -> DeviceRecord:
    failed = tuple(dict.fromkeys((*record.failed, job_id)))
    return replace(record, failed=failed, since_s=record.since_s if record.failed else began_s, last_s=now_s)


def note_samples(records: Records, samples: Iterable[Sample], now_s: float) -> Records:
    """Return the records after a reading: new uncorrectable errors and a failed row remapping are the board's own."""
    after = dict(records)
    for sample in samples:
        record, errors = records.get(sample.uuid, UNKNOWN), sample.uncorrectable
        if sample.remap_failed:
            record = replace(record, until_s=now_s + PAUSE_FIRST_S, why="it can no longer remap rows of its memory")
        elif errors is not None and record.uncorrectable is not None and errors > record.uncorrectable:
            record = _quarantined(record, "it has new uncorrectable memory errors", now_s)
        after[sample.uuid] = replace(record, uncorrectable=errors if errors is not None else record.uncorrectable)
    return after


def review(records: Records, running: Sequence[tuple[Sequence[str], float]], now_s: float) -> Records:
    """Return the records with the devices quarantined that deserve it. `running`: devices and age of each attempt."""
    after = dict(records)
    for uuid, record in records.items():
        if not record.failed:
            continue
        n = len(record.failed)
        if record.until_s > now_s:  # of jobs that were there already
            after[uuid] = replace(record, failed=())
        elif record.times or (record.is_suspect and _others_do_well(records, uuid, running)):
            jobs = "the job that tried it again" if record.times else f"{n} jobs in a row"
            why = f"{jobs} failed on it within {QUICK_S:g} s, while jobs on other GPUs did not"
            after[uuid] = replace(_quarantined(record, why, now_s), failed=())
    return after


def _others_do_well(records: Records, uuid: str, running: Sequence[tuple[Sequence[str], float]]) -> bool:
    since_s = records[uuid].since_s - TOGETHER_S
    others = (other for name, other in records.items() if name != uuid)
    if any(other.good_s >= since_s and not other.failed for other in others):  # its newest job did well, too
        return True
    return any(age_s >= LONG_S for devices, age_s in running if uuid not in devices)


def _quarantined(record: DeviceRecord, why: str, now_s: float) -> DeviceRecord:
    pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0**record.times)
    return replace(record, times=record.times + 1, until_s=now_s + pause_s, why=why)


def quarantined(records: Records, now_s: float) -> dict[str, str]:
    """Return why devices are in quarantine, by UUID."""
    return {uuid: f"in quarantine: {record.why}" for uuid, record in records.items() if record.until_s > now_s}


def suspected(records: Records, running: Sequence[tuple[Sequence[str], float]], now_s: float) -> dict[str, str]:
    """Return why devices wait for the ends of jobs on other devices, by UUID."""
    suspects = {uuid for uuid, record in records.items() if record.is_suspect}
    if all(not suspects.isdisjoint(devices) for devices, _ in running):
        return {}
    why = f"{FAILURES} jobs in a row failed on it within {QUICK_S:g} s: waits how those on other GPUs end"
    return {uuid: why for uuid in suspects if now_s - records[uuid].last_s < LONG_S}


def on_trial(records: Records) -> set[str]:
    """Return the devices that were in quarantine and have not had a job since that succeeded."""
    return {uuid for uuid, record in records.items() if record.times}
