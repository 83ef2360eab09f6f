"""One tuning: the items for its trials, the job that makes them, and the file that gets the result. Prints nothing."""

from __future__ import annotations

import heapq
import os
import random
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.common.files import write_atomically
from gpusched.common.text import clean, count
from gpusched.config.layers import LoadedSettings, with_defaults
from gpusched.core.jobs.outcome import describe
from gpusched.core.model import ENDED_STATES, Attributes, Device, JobSpec
from gpusched.host.store import attempt_table, job_table
from gpusched.host.store.pool.items import NewItem
from gpusched.lists.joblist import JobFile
from gpusched.operations.box.devices import BoxDevices, check_devices, open_devices
from gpusched.operations.queues import ignore
from gpusched.operations.run.list_queue import find_queue_dir, make_queue_dir, submit_options
from gpusched.operations.run.run import QUIET_SESSION, RunQueue, RunSession, run_jobs
from gpusched.pool.items import read_items
from gpusched.pool.tuner.options import TuneOptions
from gpusched.pool.tuner.outcome import TuneReport, make_report, write_file
from gpusched.pool.tuner.record import LARGEST, SAMPLE, TrialRecord, TunePlan, follow
from gpusched.pool.tuner.search import SearchResult, Trial, TrialSetting
from gpusched.pool.worker_name import WorkerName, find_worker

JOB = "tune"
SAMPLE_ITEMS = 1000  # of which the rates are measured
LARGEST_ITEMS = 64  # of which the memory is measured


class Tuning:
    """One start of a tuning. The same one again goes on with the trials that are on record."""

    def __init__(self, options: TuneOptions, loaded: LoadedSettings, *, notify: Callable[[str], None] = ignore) -> None:
        """Raises GpuschedError for options that make no sense."""
        options.check()
        loaded = with_defaults(loaded, "pool")
        self._name = find_worker(options.worker) if options.worker else WorkerName("")
        self.options = replace(options, worker=self._name.text)
        self._notify = notify
        self.queue_dir = find_queue_dir(self.options, loaded.settings)
        gpus = 0 if options.cpu_workers else loaded.settings.gpus_per_job
        settings = replace(loaded.settings, gpus_per_job=gpus)
        self._submit_options = submit_options(self.queue_dir, loaded._replace(settings=settings))
        self.directory = self.queue_dir.state
        self.problem = ""  # that has ended the trials

    def run(self, session: RunSession = QUIET_SESSION) -> tuple[int, TuneReport | None]:
        """Make the trials that are missing, and return the exit code with what was found; None if they were ended.

        The YAML file is written if something fits.
        """
        total, sample, largest = self._choose_items()
        make_queue_dir(self.options, self._submit_options.settings)
        for name, items in ((SAMPLE, sample), (LARGEST, largest)):
            write_atomically(f"{self.directory}/{name}", b"".join(item.value + b"\n" for item in items))
        with open_devices(self._submit_options.settings) as devices:
            chosen = self._look(devices)
            plan = self._plan(chosen, total)
            record = TrialRecord(self.directory, plan)
            if self.options.overwrite:
                record.clear()
            elif known := len(record.read()):
                self._notify(f"{count(known, 'trial')} on record; --overwrite forgets what was measured")
            code, result = EXIT_OK, self.result(plan)
            if result is None:
                code = self._make_trials(plan, devices, session)
                result = self.result(plan)
        if result is None:
            return code, None
        report = make_report(result, self.options, plan, items=total, gpus=len(chosen))
        if result.best is not None:
            kept = write_file(report, self.options, self._submit_options.settings)
            report = replace(report, kept_keys=kept)
        return code, report

    def plan_only(self) -> tuple[TunePlan, dict[TrialSetting, Trial]]:
        """Return what would be tried, and the trials on record. Writes nothing."""
        total, _, _ = self._choose_items()
        with open_devices(self._submit_options.settings) as devices:
            plan = self._plan(self._look(devices), total)
        return plan, TrialRecord(self.directory, plan).read()

    def trials(self) -> dict[TrialSetting, Trial]:
        """Return the trials on record, while they are made."""
        return TrialRecord(self.directory, TunePlan.read(self.directory)).read()

    def result(self, plan: TunePlan) -> SearchResult | None:
        """Return what the trials on record lead to; None while some are missing."""
        return follow(plan.space, TrialRecord(self.directory, plan).read(), lambda setting: None)

    # ---- before the trials ----

    def _choose_items(self) -> tuple[int, Sequence[NewItem], Sequence[NewItem]]:
        """Return how many items there are, and those by which rates and memory are measured."""
        rng = random.Random(self.options.seed)
        sample: list[NewItem] = []
        largest: list[tuple[float, int, NewItem]] = []
        total = 0
        for total, item in enumerate(read_items(self.options.for_pool), 1):
            if len(sample) < SAMPLE_ITEMS:
                sample.append(item)
            elif (place := rng.randrange(total)) < SAMPLE_ITEMS:
                sample[place] = item
            entry = (-item.rank, -total, item)
            heapq.heappushpop(largest, entry) if len(largest) >= LARGEST_ITEMS else heapq.heappush(largest, entry)
        if not total:
            raise GpuschedError("there are no items", where=f"--items {self.options.items}")
        rng.shuffle(sample)
        memory = [item for _, _, item in sorted(largest, reverse=True)] if self.options.size_key else sample
        return total, sample, memory

    def _look(self, devices: BoxDevices) -> list[Device]:
        """Return the GPUs that the trials, and the pool later, may use."""
        settings = self._submit_options.settings
        if not settings.gpus_per_job:
            return []
        seen = devices.look(self.queue_dir) or ()
        uuids = check_devices(settings, seen).uuids
        return [device for device in seen if device.uuid in uuids]

    def _plan(self, devices: Sequence[Device], total: int) -> TunePlan:
        """Return what to try on these devices, for a list of so many items."""
        options = self.options
        sizes = [device.total_bytes - device.reserved_bytes for device in devices if device.total_bytes]
        memory = int(min(sizes) * self._submit_options.settings.safety_factor) if sizes else None
        items = (options.dataset_size or total) // max(1, len(devices))
        is_thread_safe = bool(self._name.is_thread_safe)
        space = options.space(self._name.tunable, is_thread_safe=is_thread_safe, memory_bytes=memory, items=items)
        names = sorted({device.name for device in devices}) or [f"the CPU ({os.cpu_count()} cores)"]
        return TunePlan(options.for_pool, space, options.trial_items, ", ".join(names))

    # ---- the trials ----

    def _make_trials(self, plan: TunePlan, devices: BoxDevices, session: RunSession) -> int:
        command = shlex.join([sys.executable, "-m", "gpusched.commands.trial", self.directory]).encode()
        spec = JobSpec(command, command, 1, attributes=Attributes(name=JOB))

        @contextmanager
        def prepare(queue: RunQueue) -> Iterator[None]:
            plan.write(self.directory)
            for job in job_table.jobs(queue.store):
                if job.state in ENDED_STATES:
                    job_table.requeue(queue.store, job.id, again=True)
            yield

        session = session._replace(summarize=self._note_problem)
        return run_jobs(self.options, JobFile((spec,)), self._submit_options, devices, prepare=prepare, session=session)

    def _note_problem(self, queue: RunQueue, code: int) -> None:
        attempt = attempt_table.last_of_name(queue.store, JOB)
        if code == EXIT_SOME_FAILED and attempt is not None and attempt.outcome is not None:
            how = attempt.outcome.note.removeprefix("error: ") or describe(attempt.outcome)
            self.problem = f"{clean(how)} (log: {os.path.join(self.queue_dir.path, attempt.log)})"
