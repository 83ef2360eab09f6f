"""One start of a pool: its items, its queue with the coordinator's job, and its results. Prints nothing."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from glob import escape, glob
from typing import Any

from gpusched.common.errors import EXIT_DISPATCHED_ELSEWHERE, EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.config.layers import LoadedSettings, with_defaults
from gpusched.config.settings import Settings
from gpusched.core.model import ENDED_STATES, Attributes, JobSpec, JobState
from gpusched.host.store import Store, job_table
from gpusched.host.store.pool.items import ItemCounts, ItemStore
from gpusched.lists.joblist import JobFile
from gpusched.lists.submit import find_impossible
from gpusched.operations.box.devices import BoxDevices, check_devices, open_devices
from gpusched.operations.interactive.block import is_cuda_initialised
from gpusched.operations.queues import ignore
from gpusched.operations.run.list_queue import find_queue_dir, make_queue_dir, submit_options
from gpusched.operations.run.run import QUIET_SESSION, RunQueue, RunSession, run_jobs
from gpusched.pool.coordinator.worker_jobs import WorkerJobs
from gpusched.pool.files import PoolPlan, items_path, writing
from gpusched.pool.inline import publish_inline, run_inline
from gpusched.pool.items import read_items
from gpusched.pool.options import PoolOptions
from gpusched.pool.results import write_results
from gpusched.pool.summary import PoolSummary, read_summary
from gpusched.pool.worker_name import WorkerName, find_worker

COORDINATOR = "coordinator"
_OVER = (EXIT_OK, EXIT_SOME_FAILED)  # codes of a coordinator that has come to its end
# Started again when it was killed, at once and without end; whatever else it ends by is an end.
_AGAIN = 'until "$@"; do [ $? -gt 128 ] || exit 1; sleep 0.2; done'


class PoolStart:
    """One start of a pool. After `run`, `summary` says what there is."""

    def __init__(
        self,
        options: PoolOptions,
        loaded: LoadedSettings,
        *,
        worker: WorkerName | None = None,
        values: Iterable[Any] | None = None,
        notify: Callable[[str], None] = ignore,
        is_dry: bool = False,
    ) -> None:
        """`values`: items of Python in the place of a file; `is_dry`: only for a dry run, so nothing is made.

        Raises GpuschedError for options that make no sense.
        """
        options.check()
        if not options.items and values is None:
            raise GpuschedError("no items are named", hint="--items items.txt")
        if options.worker:
            worker = worker or find_worker(options.worker)
            options = replace(options, worker=worker.text)
        options.check_threads(is_safe=worker is not None and worker.is_thread_safe is not False)
        self.options, self._notify, self._values = options, notify, values
        if options.workers_per_gpu > 1 and not (options.cpu_workers or loaded.settings.mem):
            problem = "needs the memory of a worker, which others share its GPU with"
            raise GpuschedError(problem, where=f"--workers-per-gpu {options.workers_per_gpu}", hint="--mem 7G")
        self._fingerprint = options.fingerprint(worker.tunable if worker else ())
        self.queue_dir = find_queue_dir(options, loaded.settings)
        if not (is_dry or os.path.exists(items_path(options, self.queue_dir))):
            os.makedirs(options.output, exist_ok=True)
            self.queue_dir = make_queue_dir(options, loaded.settings)
        self._submit_options = submit_options(self.queue_dir, _settings_of_pool(loaded, options))
        self.items_path = items_path(options, self.queue_dir)
        self._stated = loaded.stated()
        self.counts = ItemCounts()
        self.summary = PoolSummary(options.output)
        self._has_worked = False

    def run(self, session: RunSession = QUIET_SESSION) -> int:
        """Work on the items until each has an outcome, and return the exit code: 1 if an item has no result."""
        with writing(self.items_path) as is_alone:
            if is_alone:
                self._take_list()
        if not is_alone:
            if not self._has_coordinator():
                problem = "another command works on this pool, in another directory or in its own process"
                self._notify(f"{self.options.output}: {problem}; nothing was changed, leaving (75)")
                return self._finish(EXIT_DISPATCHED_ELSEWHERE)
            self._notify("a coordinator is at work on this pool: it goes on with the items and options that it has")
        code = EXIT_OK
        if self.counts.open or not is_alone or self.options.publication.is_needed:
            self._has_worked = True
            with open_devices(self._submit_options.settings, self._gpus_per_worker) as devices:
                code = self._work(devices, session, is_alone=is_alone)
        if not is_alone and code in _OVER:  # now to those of this start
            return self.run(session)
        return self._finish(code)

    def _has_coordinator(self) -> bool:
        """Return True if the coordinator at work may be a job of this queue, and of no other one."""
        if not self.queue_dir.exists():
            return False
        with Store(self.queue_dir.database) as store:
            return any(job.name == COORDINATOR for job in job_table.jobs(store, [JobState.RUNNING]))

    def _take_list(self) -> None:
        """Make the items those of the list. Raises GpuschedError for results of other settings."""
        options = self.options
        with ItemStore(self.items_path) as store:
            before = store.read("fingerprint")
            if options.overwrite:
                store.clear()
                for path in glob(f"{escape(options.parts_dir)}/part-*"):
                    os.unlink(path)
            elif before not in (None, self._fingerprint) and not store.has_outcomes():
                store.forget_errors()  # nor do tries of what was mended count
            elif before not in (None, self._fingerprint):
                hint = "choose another --output-dir, or forget these results with --overwrite"
                problem = "holds results of another worker or of other settings, and results are not mixed"
                raise GpuschedError(problem, where=options.output, hint=hint)
            known = store.counts().total
            new = store.replace_list(read_items(options, self._values))
            if options.retry_errors:
                store.forget_errors()
            store.write("fingerprint", self._fingerprint)
            self.counts = store.counts()
        if not self.counts.total and self.options.items:
            raise GpuschedError("there are no items", where=f"--items {self.options.items}")
        if known:
            done = f"{self.counts.results} of {self.counts.total} items have a result"
            self._notify(f"{done}, {self.counts.errors} an error; {new} are new")

    def dry_run(self) -> list[str]:
        """Return what a start would do, in lines for people. Changes nothing."""
        total = sum(1 for _ in read_items(self.options, self._values))
        with open_devices(self._submit_options.settings, self._gpus_per_worker) as devices:
            gpus = self._count_gpus(devices)
        where = f"{gpus} GPUs" if gpus else f"the CPU, by {self.options.cpu_count} workers"
        lines = [f"{total} items for {self.options.worker or self.options.command}, on {where}"]
        return [*lines, f"results in {self.options.output}, queue {self.queue_dir.path}: nothing was started"]

    # ---- the work ----

    @property
    def _gpus_per_worker(self) -> int:
        return 0 if self.options.cpu_workers else self._submit_options.settings.gpus_per_job

    def _work(self, devices: BoxDevices, session: RunSession, *, is_alone: bool) -> int:
        gpus = self._count_gpus(devices)
        is_small = self.counts.open < self.options.min_items_per_gpu and gpus == 1 and not is_cuda_initialised()
        if is_alone and (self.options.inline or is_small):
            devices.close()
            with writing(self.items_path), ItemStore(self.items_path) as store:
                if self.counts.open:
                    run_inline(self.options, store, has_gpu=bool(gpus), settings=self._stated)
                publish_inline(self.options, store)
            return EXIT_OK
        plan = PoolPlan(**vars(self.options), queue=self.queue_dir.path, gpus=gpus)
        script = ["sh", "-c", _AGAIN, "sh", sys.executable, "-m", "gpusched.pool.coordinator", self.queue_dir.state]
        command = shlex.join(script).encode()
        spec = JobSpec(command, command, 1, attributes=Attributes(gpus=0, name=COORDINATOR, retries=1000))
        return run_jobs(
            self.options,
            JobFile((spec,)),
            self._submit_options,
            devices,
            prepare=lambda queue: self._prepare(queue, plan),
            session=session,
        )

    def _count_gpus(self, devices: BoxDevices) -> int:
        """Return how many GPUs the pool uses at once. Raises GpuschedError for a worker that they can never serve."""
        settings = self._submit_options.settings
        if not self._gpus_per_worker:
            return 0
        seen = devices.look(self.queue_dir)
        if not seen:
            return settings.gpus_at_once
        uuids = check_devices(settings, seen).uuids
        worker = JobSpec(b"", b"", 0, attributes=Attributes(gpus=self._gpus_per_worker))
        allowed = [device for device in seen if device.uuid in uuids]
        for _, why in find_impossible([worker], self._submit_options, allowed):
            raise GpuschedError(f"a worker {why}", hint="`gpusched devices` shows the GPUs")
        return settings.jobs_at_once(len(uuids))

    @contextmanager
    def _prepare(self, queue: RunQueue, plan: PoolPlan) -> Iterator[None]:
        """Have the coordinator run, again if it has ended; forget workers that waited for an earlier one."""
        with writing(self.items_path) as is_alone:
            if is_alone:
                plan.write(self.queue_dir.state)
                with closing(WorkerJobs(self.queue_dir)) as jobs:
                    jobs.cancel(jobs.waiting())
                for job in job_table.jobs(queue.store):
                    if job.name == COORDINATOR and job.state in ENDED_STATES:
                        job_table.requeue(queue.store, job.id, again=True)
        yield

    def _finish(self, code: int) -> int:
        """Write the results, unless the pool was ended before, and return the exit code."""
        is_over = code in _OVER
        with writing(self.items_path) as is_alone, ItemStore(self.items_path) as store:
            self.counts = store.counts()
            writes = is_alone and (is_over or not self.counts.open)
            files = write_results(store, self.options) if writes else []
            self.summary = read_summary(store, self.options, files, is_new=self._has_worked)
        if is_over and not is_alone:
            return EXIT_DISPATCHED_ELSEWHERE
        if not is_over:
            return code
        is_complete = self.counts.results == self.counts.total and not self.summary.parts_left
        return EXIT_OK if is_complete else EXIT_SOME_FAILED


def export_results(options: PoolOptions, settings: Settings) -> PoolSummary:
    """Write the results that a pool has by now, whether it is at work or not. Raises GpuschedError if it has none."""
    options.check(is_export=True)
    path = items_path(options, find_queue_dir(options, settings))
    if not os.path.exists(path):
        raise GpuschedError("holds no results of a pool", where=options.output, hint="gpusched pool … --output-dir DIR")
    with ItemStore(path) as store:
        return read_summary(store, options, write_results(store, options), is_new=True)


def _settings_of_pool(loaded: LoadedSettings, options: PoolOptions) -> LoadedSettings:
    """Return the settings of the queue: room for the workers, and for the coordinator beside them."""
    loaded = with_defaults(loaded, "pool")
    settings = replace(loaded.settings, max_jobs_per_gpu=max(options.workers_per_gpu, options.max_workers_per_gpu))
    if options.cpu_workers:
        settings = replace(settings, cpu_jobs=options.cpu_count + 1)
    return loaded._replace(settings=settings)
