"""The spectral analysis of many models as a library: an experiment, and what it has done by others. Prints nothing.

from gpusched.api import EsdConfig, EsdExperiment
exit_code = EsdExperiment(EsdConfig(model_list="atlas.csv", output_dir="esd_results")).run()
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from gpusched.common import hub_headers, tensor_headers
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.files import write_atomically
from gpusched.common.tensor_headers import Shapes
from gpusched.common.text import last_line
from gpusched.config.layers import LoadedSettings, load
from gpusched.core.jobs.outcome import describe
from gpusched.core.jobs.reconcile import StoredJob
from gpusched.core.model import JobRow, JobState
from gpusched.dispatcher import Observer
from gpusched.esd import jobs as experiment
from gpusched.esd.config import EsdConfig as EsdConfig
from gpusched.host.attempts.reaper import log_tail
from gpusched.host.store import Store, attempt_table, job_table, submission
from gpusched.lists.jobfile import JobFile
from gpusched.lists.submit import to_give
from gpusched.operations.devices import check_devices, open_devices
from gpusched.operations.run import RunSession, run_jobs
from gpusched.operations.submit import find_queue_dir, submit_options


@dataclass(frozen=True, slots=True)
class EsdSource:
    """The models of an experiment in the place of a file of jobs. Their queue belongs to the output directory."""

    config: EsdConfig

    @property
    def output(self) -> str:
        return os.path.abspath(os.path.expanduser(self.config.output_dir))

    @property
    def stem(self) -> str:
        return os.path.basename(self.output) or "esd"

    @property
    def owner(self) -> bytes:
        return b"esd " + os.fsencode(self.output)

    @property
    def words(self) -> list[str]:
        return self.config.words


class EsdWorkshop:
    """What an experiment has done by others: its queue, the GPUs of this box, the headers of models."""

    def __init__(self, config: EsdConfig, loaded: LoadedSettings, session: RunSession | None = None) -> None:
        self.source = EsdSource(config)
        self.place = find_queue_dir(self.source, loaded.settings)
        self.rules = submit_options(self.place, loaded, retry_failed=config.retry_failed)
        self.devices = open_devices(self.rules.settings)
        self.session = session or RunSession()

    def close(self) -> None:
        """Close the devices, if they were opened."""
        self.devices.close()

    def tell(self, text: str) -> None:
        logging.getLogger("gpusched").info("%s", text)

    def held(self) -> Sequence[StoredJob]:
        if not self.place.exists():
            return []
        store = Store(self.place.database, read_only=True)
        try:
            return submission.stored_jobs(store)
        finally:
            store.close()

    def budgets(self) -> Sequence[int]:
        settings = self.rules.settings
        if not settings.gpus_per_job:
            return []
        known = self.devices.look(self.place)
        if not known:
            return []
        chosen = check_devices(settings, known).uuids
        return [to_give(device) for device in known if device.uuid in chosen]

    def at_once(self) -> int:
        settings = self.rules.settings
        if not settings.gpus_per_job:
            return settings.cpu_jobs
        gpus = len(self.budgets()) or settings.gpus_at_once
        return settings.jobs_at_once(gpus) * settings.max_jobs_per_gpu

    def shapes(self, models: Collection[experiment.Model]) -> Mapping[experiment.Model, Shapes]:
        found = {model: tensor_headers.read(model[0]) for model in models}
        absent = [model for model, shapes in found.items() if shapes is None]
        asked: Mapping[experiment.Model, Shapes] = {}
        if absent:
            if not hub_headers.why_not():
                many = "1 model" if len(absent) == 1 else f"{len(absent)} models"
                self.tell(f"asking the hub for the shapes of {many}, {hub_headers.DEADLINE_S:g} s at most")
            asked = hub_headers.ask(absent)
        return {model: asked[model] if shapes is None else shapes for model, shapes in found.items()}

    def run(self, jobs: JobFile, *, complete: bool) -> int:
        with self.devices as devices:
            return run_jobs(self.source, jobs, self.rules, devices, complete=complete, session=self.session)

    def outcomes(self) -> Mapping[str, str]:
        if not self.place.exists():
            return {}
        store = Store(self.place.database, read_only=True)
        try:
            found: dict[str, str] = {}
            for job in job_table.jobs(store):
                found[job.name] = job.state.value
                if job.state is JobState.FAILED:
                    found[job.name] = f"failed: {self._story(store, job)}"
                elif job.state is JobState.QUEUED:
                    found[job.name] = "waits for its turn"
        finally:
            store.close()
        return {name: text for name, text in found.items() if text != JobState.SUCCEEDED.value}

    def _story(self, store: Store, job: JobRow) -> str:
        """How a job that failed ended, and the last line that it said."""
        attempts = attempt_table.attempts(store, job.id)
        if not attempts:
            return job.cause
        last = attempts[-1]
        ended = describe(last.outcome) if last.outcome is not None else job.cause
        said = last_line(log_tail(f"{self.place.path}/{last.error_log or last.log}"))
        return f"{ended}; it said: {said}" if said else ended

    def prepare(self, directory: str) -> None:
        try:
            os.makedirs(directory, exist_ok=True)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise _unwritable(directory, error) from None

    def write(self, path: str, text: str) -> None:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_atomically(path, text.encode("utf-8", "backslashreplace"), sync=True, mode=0o644)
        except OSError as error:
            raise _unwritable(path, error) from None


def _unwritable(path: str, error: OSError) -> GpuschedError:
    hint = "what is analysed is kept; make room, or write elsewhere with --output-dir, and give the command again"
    return GpuschedError(f"cannot be written: {error.strerror}", where=path, hint=hint, exit_code=EXIT_CANNOT_WORK)


class EsdExperiment(experiment.EsdExperiment):
    """The spectral analysis of many models, on the GPUs of this box: `EsdExperiment(EsdConfig(…)).run()`.

    Override `build_command` or `summarise`. `run` returns an exit code, and `summary` is what it came to.
    """

    def __init__(self, config: EsdConfig, *, observer: Observer | None = None) -> None:
        session = RunSession(watch=lambda queue: nullcontext(observer))
        super().__init__(config, EsdWorkshop(config, load(config.flags), session))
