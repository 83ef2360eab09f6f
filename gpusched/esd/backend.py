"""The queue of an experiment, the GPUs of this box, and the shapes of models. Decides nothing about an experiment."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from gpusched import api
from gpusched.common import hub_headers, tensor_headers
from gpusched.common.tensor_headers import Shapes
from gpusched.common.text import last_line
from gpusched.config.settings import LoadedSettings
from gpusched.core.jobs.outcome import describe
from gpusched.core.jobs.reconcile import StoredJob
from gpusched.core.model import JobRow, JobState
from gpusched.dispatcher import Observer
from gpusched.esd.budgets import Model
from gpusched.esd.config import EsdConfig
from gpusched.host.attempts.reaper import log_tail
from gpusched.host.store import Store
from gpusched.lists.jobfile import JobFile
from gpusched.lists.submit import SubmitOptions, to_give


def log_message(text: str) -> None:
    """Write a message for people to the log of gpusched."""
    logging.getLogger("gpusched").info("%s", text)


class EsdBackend:
    """The access of an experiment to its queue, the GPUs and the shapes of models."""

    def __init__(
        self,
        config: EsdConfig,
        loaded: LoadedSettings,
        *,
        observer: Observer | None = None,
        notify: Callable[[str], None] = log_message,
        run: Callable[[EsdBackend, JobFile, bool], int] | None = None,
    ) -> None:
        """`notify` gets messages for people, one line each."""
        self._run = run
        self.config = config
        self.notify = notify
        self.queue_dir = api.place_for(config, loaded.settings)
        settings = api.settings_for(self.queue_dir, loaded)
        self.options = SubmitOptions(settings, os.fsencode(os.getcwd()), retry_failed=config.retry_failed)
        self._observer = observer
        self._devices: api.Devices | None = None

    # ---- the queue ----

    def stored_jobs(self) -> Sequence[StoredJob]:
        """Return the jobs that the queue holds already."""
        if not self.queue_dir.exists():
            return []
        store = Store(self.queue_dir.database, read_only=True)
        try:
            return store.held()
        finally:
            store.close()

    def run_jobs(self, jobs: JobFile, *, complete: bool) -> int:
        """Run the jobs to their end and return the exit code. If `complete`, other waiting jobs are cancelled."""
        if self._run is not None:
            return self._run(self, jobs, complete)
        options = replace(self.options, dirs=api.job_dirs(self.queue_dir, self.options))
        queue = api.Queue.for_file(self.config, options.settings)
        try:
            queue.submit(jobs, options, complete=complete)
            return queue.dispatch(
                options, lambda: self.take_devices() or api.open_devices(options.settings), observer=self._observer
            )
        finally:
            queue.close()

    def read_outcomes(self) -> Mapping[str, str]:
        """Return how each job that did not succeed has ended or where it stands, in words, by the name of the job."""
        if not self.queue_dir.exists():
            return {}
        store = Store(self.queue_dir.database, read_only=True)
        try:
            newest = {job.name: job for job in store.jobs()}
            left = (job for job in newest.values() if job.state is not JobState.SUCCEEDED)
            return {job.name: self._outcome(store, job) for job in left}
        finally:
            store.close()

    def _outcome(self, store: Store, job: JobRow) -> str:
        if job.state is JobState.QUEUED:
            return "waits for its turn"
        if job.state is not JobState.FAILED:
            return str(job.state.value)
        attempts = store.attempts(job.id)
        if not attempts:
            return f"failed: {job.cause}"
        last = attempts[-1]
        ended = describe(last.outcome) if last.outcome is not None else job.cause
        line = last_line(log_tail(f"{self.queue_dir.path}/{last.error_log or last.log}"))
        return f"failed: {ended}; the last line of its log: {line}" if line else f"failed: {ended}"

    # ---- the GPUs ----

    def device_budgets(self) -> Sequence[int]:
        """Return the memory in bytes that a job can get on each allowed GPU; empty if no GPU is known or wanted."""
        settings = self.options.settings
        if not settings.gpus_per_job:
            return []
        if self._devices is None:
            self._devices, devices = api.look(self.queue_dir, settings, settings.gpus_per_job)
        else:
            devices = self._devices.first.devices
        if not devices:
            return []
        allowed = api.check_devices(settings, devices).uuids
        return [to_give(device) for device in devices if device.uuid in allowed]

    def jobs_at_once(self) -> int:
        """Return how many jobs may run at the same time."""
        settings = self.options.settings
        if not settings.gpus_per_job:
            return settings.cpu_jobs
        gpus = len(self.device_budgets()) or settings.gpus_at_once
        return settings.jobs_at_once(gpus) * settings.max_jobs_per_gpu

    def take_devices(self) -> api.Devices | None:
        """Hand over the opened devices; the caller closes them."""
        devices, self._devices = self._devices, None
        return devices

    def close(self) -> None:
        """Close the devices, unless they were handed over."""
        devices = self.take_devices()
        if devices is not None:
            devices.close()

    def __enter__(self) -> EsdBackend:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- the models ----

    def read_shapes(self, models: Collection[Model]) -> Mapping[Model, Shapes]:
        """Return the tensors of each model, or why they are unknown; the hub is asked for what is not on this box."""
        local = {model: tensor_headers.read(*model) for model in models}
        absent = [model for model, shapes in local.items() if shapes is None]
        if absent and not hub_headers.why_not():
            many = "1 model" if len(absent) == 1 else f"{len(absent)} models"
            self.notify(f"asking the hub for the shapes of {many}, for {hub_headers.DEADLINE_S:g} s at most")
        remote = hub_headers.ask(absent) if absent else {}
        return {model: remote[model] if shapes is None else shapes for model, shapes in local.items()}
