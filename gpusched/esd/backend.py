"""The queue of an experiment, the GPUs of this box, and the shapes of models. Decides nothing about an experiment."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence

from gpusched.common.weights import hub_headers
from gpusched.common.weights.hub_headers import Model
from gpusched.common.weights.tensor_headers import Shapes
from gpusched.config.layers import LoadedSettings
from gpusched.core.jobs.outcome import describe
from gpusched.core.jobs.reconcile import StoredJob
from gpusched.core.model import JobRow, JobState
from gpusched.core.plan.feasibility import to_give
from gpusched.esd.config import EsdConfig
from gpusched.host.store import Store, attempt_table, job_table, submission
from gpusched.lists.joblist import JobFile
from gpusched.operations.box.devices import check_devices, open_devices
from gpusched.operations.look.status import read_last_line
from gpusched.operations.run.list_queue import find_queue_dir, submit_options
from gpusched.operations.run.run import QUIET_SESSION, RunSession, run_jobs

_log = logging.getLogger("gpusched")


class EsdBackend:
    """The access of an experiment to its queue, the GPUs and the shapes of models. Close it at the end."""

    def __init__(
        self,
        config: EsdConfig,
        loaded: LoadedSettings,
        *,
        session: RunSession = QUIET_SESSION,
        notify: Callable[[str], None] = _log.info,
    ) -> None:
        """`notify` gets messages for people, one line each."""
        self.config = config
        self.notify = notify
        self.queue_dir = find_queue_dir(config, loaded.settings)
        self.options = submit_options(self.queue_dir, loaded, retry_failed=config.retry_failed)
        self._session = session
        self._devices = open_devices(self.options.settings)

    def close(self) -> None:
        """Close the GPUs, if they are open."""
        self._devices.close()

    # ---- the queue ----

    def stored_jobs(self) -> Sequence[StoredJob]:
        """Return the jobs that the queue holds already."""
        if not self.queue_dir.exists():
            return []
        with Store(self.queue_dir.database, read_only=True) as store:
            return submission.stored_jobs(store)

    def run_jobs(self, jobs: JobFile, *, complete: bool) -> int:
        """Run the jobs to their end and return the exit code. If `complete`, other waiting jobs are cancelled."""
        return run_jobs(self.config, jobs, self.options, self._devices, complete=complete, session=self._session)

    def read_outcomes(self) -> Mapping[str, str]:
        """Return how each job has ended or where it stands, in words, by the name of the job."""
        if not self.queue_dir.exists():
            return {}
        with Store(self.queue_dir.database, read_only=True) as store:
            newest = {job.name: job for job in job_table.jobs(store)}
            return {name: self._outcome(store, job) for name, job in newest.items()}

    def _outcome(self, store: Store, job: JobRow) -> str:
        if job.state is JobState.QUEUED:
            return "waits for its turn"
        if job.state is not JobState.FAILED:
            return str(job.state.value)
        last = next(reversed(attempt_table.attempts(store, job.id)), None)
        ended = describe(last.outcome) if last and last.outcome else job.cause
        line = read_last_line(self.queue_dir, last) if last else ""
        return f"failed: {ended}; the last line of its log: {line}" if line else f"failed: {ended}"

    # ---- the GPUs ----

    def device_budgets(self) -> Sequence[int]:
        """Return the memory in bytes that a job can get on each allowed GPU; empty if no GPU is known or wanted."""
        settings = self.options.settings
        if not settings.gpus_per_job:
            return []
        devices = self._devices.look(self.queue_dir)
        if not devices:
            return []
        allowed = check_devices(settings, devices).uuids
        return [to_give(device) for device in devices if device.uuid in allowed]

    def jobs_at_once(self) -> int:
        """Return how many jobs may run at the same time."""
        settings = self.options.settings
        if not settings.gpus_per_job:
            return settings.cpu_jobs
        gpus = len(self.device_budgets()) or settings.gpus_at_once
        return settings.jobs_at_once(gpus) * settings.max_jobs_per_gpu

    # ---- the models ----

    def read_shapes(self, models: Collection[Model]) -> Mapping[Model, Shapes]:
        """Return the tensors of each model, or why they are unknown; the hub is asked for what is not on this box."""
        if absent := sum(not os.path.exists(name) for name, _ in models):
            deadline = f"{hub_headers.DEADLINE_S:g} s at most"
            self.notify(f"looking up the shapes of models that are not here, for {deadline} (models: {absent})")
        return hub_headers.ask(models)
