"""Interactive attempts in the default queue: booked as running, closed by whoever sees their end. Starts nothing.

Their life file is locked as long as any process of them has its descriptor: no shepherd keeps a record for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpusched.common import processes
from gpusched.core.jobs.lifecycle import JobEvent, Verdict
from gpusched.core.model import NOTHING_USED, DeviceUse, JobSpec, JobState, Outcome, OutcomeKind, Requirements, Usage
from gpusched.host import locks
from gpusched.host.attempts import attempt_dir, reaper
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table, meta_table, submission
from gpusched.host.store.attempt_table import AttemptEnd

_LOST = Outcome(OutcomeKind.LOST, note="its parent process was killed, so nobody knows how it ended")


@dataclass(frozen=True, slots=True)
class Booking:
    """An interactive attempt of this process, the only one of its job; `life` is the descriptor of its lock."""

    queue_dir: QueueDir
    job_id: int
    life: int

    @property
    def variables(self) -> dict[bytes, bytes]:
        """The variables by which its processes are known."""
        return dict([word.split(b"=", 1) for word in self.marker])

    @property
    def marker(self) -> tuple[bytes, ...]:
        return attempt_dir.marker(self.queue_dir.path, self.job_id, 1)

    def is_cancelled(self) -> bool:
        """Return True if somebody has asked for its end."""
        with Store(self.queue_dir.database, read_only=True) as store:
            return job_table.get(store, self.job_id).cancel_requested_at is not None

    def close(self, outcome: Outcome, usage: Usage = NOTHING_USED) -> None:
        """Book its end, and let go of its lock here. Raises GpuschedError if the queue cannot be written."""
        try:
            with Store(self.queue_dir.database) as store:
                _close(store, self.job_id, outcome, usage)
        finally:
            os.close(self.life)
        reaper.remove_files(attempt_dir.directory(self.queue_dir.state, self.job_id, 1))
        self.queue_dir.ring()


def book(queue_dir: QueueDir, command: str, devices: Sequence[DeviceUse], time_limit_s: float | None) -> Booking:
    """Book a job that runs from now on, and whose life is that of this process and of those that inherit `life`."""
    now, text = time.time(), os.fsencode(command)
    needs = Requirements(gpus=len(devices), time_limit_s=time_limit_s, cwd=os.fsencode(os.getcwd()))
    spec = JobSpec(text, text, 1, key=os.urandom(16))
    with Store(queue_dir.database) as store, store.transaction():
        ((job_id, _),) = submission.add(store, [spec], lambda _: needs, now, origin="exec")
        store.update("jobs", "id = ?", (job_id,), listed=0)  # of no list: its end counts in no total
        attempt_table.start(store, job_id, now, "", "", devices)
        life = attempt_dir.make(attempt_dir.directory(queue_dir.state, job_id, 1))
        locks.try_lock(life)
        pid = os.getpid()
        identity = {"pid": pid, "start_ticks": processes.process_start(pid), "boot_id": processes.boot_id()}
        attempt_dir.write_mark(life, {**identity, "started_at": now, "queue_id": meta_table.queue_id(store)})
    queue_dir.ring()
    return Booking(queue_dir, job_id, life)


def is_alive(store: Store, job_id: int) -> bool:
    """Return True while a process of this interactive job is left."""
    return reaper.is_alive(os.path.dirname(store.path), job_id, 1)


def lost_jobs(store: Store) -> list[int]:
    """Return the interactive jobs that run by the queue, and of which no process is left."""
    return [job.id for job, _ in attempt_table.interactive(store) if not is_alive(store, job.id)]


def close_lost(store: Store) -> None:
    """Close the interactive attempts of which no process is left."""
    for job_id in lost_jobs(store):
        _close(store, job_id, _LOST)


def _close(store: Store, job_id: int, outcome: Outcome, usage: Usage = NOTHING_USED) -> None:
    """Close an attempt, unless somebody has done so; its job is never queued again."""
    is_ended = outcome.kind in (OutcomeKind.CANCELLED, OutcomeKind.INTERRUPTED)
    event = JobEvent.CANCELLED if is_ended else JobEvent.SUCCEEDED if outcome.ok else JobEvent.FAILED
    now = time.time()
    with store.transaction():
        if job_table.get(store, job_id).state is JobState.RUNNING:
            attempt_table.close(store, job_id, 1, AttemptEnd(outcome, now, usage), Verdict(event, 1, 0), now=now)
