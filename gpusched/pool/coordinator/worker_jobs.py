"""The workers of a pool as jobs of its queue: added like a submission, counted, cancelled. Decides nothing."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Collection

from gpusched.config.settings import Settings
from gpusched.core.jobs.outcome import describe
from gpusched.core.model import ENDED_STATES, Attributes, JobRow, JobSpec, JobState
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table, meta_table, submission
from gpusched.lists.submit import SubmitOptions
from gpusched.operations.run.list_queue import with_dirs

TAG = "worker"
_OPEN = (JobState.QUEUED, JobState.RUNNING)


class WorkerJobs:
    """The worker jobs of a queue that have not ended."""

    def __init__(self, queue_dir: QueueDir, *, on_cpu: bool = False) -> None:
        self._queue_dir = queue_dir
        self._store = Store(queue_dir.database)
        self.settings = Settings.from_json(meta_table.read(self._store, "settings") or "{}")
        self._gpus = 0 if on_cpu else self.settings.gpus_per_job
        self._version = -1
        self._own: set[int] = set()  # jobs that this object has added
        self._jobs: dict[int, JobRow] = {}

    def close(self) -> None:
        self._store.close()

    def open_jobs(self) -> dict[int, JobRow]:
        """Return the workers that wait or run, by their ids."""
        version = self._store.data_version()
        if version != self._version:
            rows = job_table.jobs(self._store, _OPEN)
            self._jobs = {row.id: row for row in rows if TAG in row.tags}
            self._version = version
        return self._jobs

    @property
    def can_share(self) -> bool:
        """True if several workers fit on a GPU: the memory of each is known."""
        return self._gpus == 0 or (self._gpus == 1 and bool(self.settings.mem))

    def labels(self, since_at: float) -> dict[str, str]:
        """Return the devices that workers have had since then, as people know them, by UUID: "GPU 3"."""
        attempts = [attempt for _, attempt in attempt_table.spent(self._store)]
        used = [device for each in attempts if (each.ended_at or since_at) >= since_at for device in each.devices]
        return {each.uuid: each.uuid if each.uuid.startswith("MIG-") else f"GPU {each.index}" for each in used}

    def end_of(self, job: int, since: float) -> str:
        """Return how the first attempt of a job has ended that did so after this time; empty if none is known to."""
        attempts = (each for each in attempt_table.attempts(self._store, job) if (each.ended_at or 0.0) > since)
        return next((describe(each.outcome) for each in attempts if each.outcome is not None), "")

    def waiting(self) -> list[int]:
        """Return the workers that have not started."""
        return [job.id for job in self.open_jobs().values() if job.state is JobState.QUEUED]

    def add(self, count: int, device: str = "") -> None:
        """Add workers, on one device if it is named: first own ones again that have ended, then new ones.

        The dispatcher starts them at once if there is room.
        """
        for job in list(job_table.jobs(self._store, sorted(ENDED_STATES))):
            if count and job.id in self._own and job.gpu_model == device * bool(self._gpus):
                job_table.requeue(self._store, job.id, again=True)
                count -= 1
        command = shlex.join([sys.executable, "-m", "gpusched.commands.worker", self._queue_dir.state]).encode()
        attributes = Attributes(gpus=self._gpus, name=TAG, tags=(TAG,), retries=0, gpu_model=device * bool(self._gpus))
        specs = [JobSpec(command, command, 0, attributes=attributes, key=os.urandom(16)) for _ in range(count)]
        options = with_dirs(SubmitOptions(self.settings, os.fsencode(os.getcwd())), self._queue_dir)
        self._own |= {job for job, _ in submission.add(self._store, specs, options.needs, time.time())}
        self._changed()

    def cancel(self, jobs: Collection[int]) -> None:
        """Cancel workers; the dispatcher ends those that run."""
        for job in jobs:
            job_table.cancel(self._store, job, time.time())
        if jobs:
            self._changed()

    def _changed(self) -> None:
        self._version = -1  # a connection does not see its own changes in it
        self._queue_dir.ring()
