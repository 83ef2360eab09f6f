"""Jobs -> their queue -> a dispatcher, until all have ended. Prints nothing.

The verbs `run`, `shard` and `esd`, and the library, all run their jobs by `run_jobs`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

from gpusched.common.errors import EXIT_DISPATCHED_ELSEWHERE, EXIT_OK, EXIT_QUIT, EXIT_SOME_FAILED
from gpusched.config.settings import Settings
from gpusched.core.jobs.reconcile import QueueChange
from gpusched.dispatcher import Dispatcher, Hooks, Observer, Quiet, Restarts
from gpusched.dispatcher.jobs.feed import Feed, FileFeed, StreamFeed
from gpusched.host.gpus.claims import Claims
from gpusched.host.queue.queue_dirs import QueueDir, is_standing
from gpusched.host.store import Store, job_table, meta_table, request_table
from gpusched.lists.jobfile import JobFile, LineFeed
from gpusched.lists.submit import JobSource, Source, SubmitOptions, read, submit
from gpusched.operations.box.devices import BoxDevices, check_jobs
from gpusched.operations.queues import ignore as ignore
from gpusched.operations.queues import queue_word
from gpusched.operations.run import background, logout
from gpusched.operations.run.list_queue import find_queue_dir, make_queue_dir, with_dirs

ACK_STEP_S = 0.05
DISPATCHER_PATIENCE_S = 2.0  # with a busy database; signals wait meanwhile
SLOW_ACK_S = 5.0  # after so long without an answer, report what is waited for


class RunQueue:
    """One queue, opened: submit jobs to it, dispatch it. A context manager that closes its database."""

    def __init__(self, queue_dir: QueueDir) -> None:
        """Open a queue that exists. Raises GpuschedError otherwise."""
        self.queue_dir = queue_dir
        self.store = Store(queue_dir.database)
        self.kept_lock: int | None = None  # of the dispatcher, for the process that goes on after dispatch()
        self.newest: SubmitOptions | None = None  # by which it was dispatched in the end
        self._jobs = JobFile(())  # the newest submission

    @classmethod
    def for_file(cls, source: Source, settings: Settings | None = None) -> RunQueue:
        """Open the queue of a list (a file, "-", or a typed command), and make it if it does not exist."""
        return cls(make_queue_dir(source, settings or Settings()))

    def __enter__(self) -> RunQueue:
        background.refuse_cluster(self.store, self.queue_dir)
        return self

    def __exit__(self, *error: object) -> None:
        self.store.close()

    def submit(self, jobs: JobFile, options: SubmitOptions, *, complete: bool = True) -> QueueChange:
        """Make the queue hold these jobs; if `complete`, other jobs that wait there are cancelled.

        A dispatcher that works on the queue takes the options too.
        """
        options = with_dirs(options, self.queue_dir)
        assert options.dirs is not None
        options.look_around(jobs.specs)
        with self.store.transaction():
            meta_table.write(self.store, "dirs", options.dirs.to_json())
            meta_table.write(self.store, "settings", options.settings.to_json())
            meta_table.write(self.store, "on_dep_fail", options.settings.on_dep_fail)
            change = submit(self.store, jobs.specs, options, time.time(), complete=complete)
        self._jobs = jobs
        return change

    def dispatch(
        self,
        options: SubmitOptions,
        devices: BoxDevices,
        *,
        hooks: Hooks | None = None,
        notify: Callable[[str], None] = ignore,
        submitted: bool = True,
    ) -> int:
        """Dispatch until all jobs have ended, and return the exit code; 75 when another dispatcher took the jobs.

        `notify` gets a line when this takes long to begin. Without a submission it gives way at once. Where another
        process is to go on, `kept_lock` is for it.
        """
        hooks = hooks or Hooks()
        lock = self._take_lock(notify, hooks.step) if submitted else self.queue_dir.take()
        if lock is None:
            return EXIT_DISPATCHED_ELSEWHERE
        if submitted and not devices.is_open:
            check_jobs(self._jobs, options, devices.first.devices)
        claims = Claims(options.settings.claims_dir)
        claims.directory()  # a reason to refuse the run
        restarts = Restarts(self.queue_dir, hooks)

        def make() -> Dispatcher:
            self.store.close()  # what a connection remembers may be what the last dispatcher has failed at
            self.store = Store(self.queue_dir.database, patience_s=DISPATCHER_PATIENCE_S)
            background.note_gpus(self.store, devices.first.devices)
            return Dispatcher(self.queue_dir, self.store, devices.source, claims, options, devices.first, hooks=hooks)

        while lock is not None:
            try:
                code, dispatcher = restarts.run(make)
                self.newest = options = dispatcher.options.submit
                if dispatcher.leaving.hands_over:
                    self.kept_lock, lock = lock, None
                    return code
            finally:
                if lock is not None:
                    os.close(lock)
            hooks.step("left")
            if dispatcher.leaving.has_later_jobs and is_standing(self.queue_dir):
                background.autostart(self.queue_dir, options.settings, notify)
            if (
                dispatcher.leaving.reason
                or code not in (EXIT_OK, EXIT_SOME_FAILED)
                or not job_table.has_work(self.store)
            ):
                break
            lock = self.queue_dir.take()  # for what was submitted after the last look
        return code

    def _take_lock(self, notify: Callable[[str], None], step: Callable[[str], None]) -> int | None:
        """Become the dispatcher of this queue; return the lock, or None if another dispatcher took the submission."""
        request = request_table.add(self.store, "submitted", time.time())
        step("requested")
        self.queue_dir.ring()
        slow_at = time.monotonic() + SLOW_ACK_S
        while (lock := self.queue_dir.take()) is None:
            if request_table.is_acknowledged(self.store, request):
                return None
            if time.monotonic() > slow_at:
                slow_at = float("inf")
                pid = self.queue_dir.dispatcher()
                notify(f"waiting for the dispatcher of {self.queue_dir.path} (pid {pid}), which is leaving or slow")
            time.sleep(ACK_STEP_S)
        return lock


# ---- the whole of a run ----------------------------------------------------------------------------


class RunSession(NamedTuple):
    """The surroundings of a run: who watches it, and where more jobs come from.

    `watch` opens the observer of the dispatcher; `notify` gets lines for people; `summarize` is called with the exit
    code at the end, unless another dispatcher took the jobs. With `follow`, the run stays for jobs that come later.
    A `quiet` session hears nothing of a start that had nothing to do.
    """

    watch: Callable[[RunQueue], AbstractContextManager[Observer | None]] = lambda queue: nullcontext()
    notify: Callable[[str], None] = ignore
    summarize: Callable[[RunQueue, int], None] = lambda queue, code: None
    log_level: str | None = None  # of dispatcher.log; None: write no such log
    feed: Feed | None = None
    follow: bool = False
    quiet: bool = False


QUIET_SESSION = RunSession()


def feed_of(source: JobSource, options: SubmitOptions, begun: bytes = b"") -> Feed | None:
    """Return where later jobs come from: the file as it is edited, or the stream, of which `begun` was read already."""
    if source.is_stream:
        return StreamFeed(0, LineFeed(**options.reading), begun)
    if not isinstance(source.source, str) or source.stat is None:
        return None
    path = os.path.abspath(source.source)
    return FileFeed(path, lambda text: read(text, options, path), source.data, source.stat)


def run_jobs(
    source: Source,
    jobs: JobFile,
    options: SubmitOptions,
    devices: BoxDevices,
    *,
    complete: bool = True,
    prepare: Callable[[RunQueue], AbstractContextManager[object]] = nullcontext,
    session: RunSession = QUIET_SESSION,
) -> int:
    """Submit the jobs to the queue of their source and dispatch until all have ended; return the exit code.

    If `complete`, waiting jobs of the queue that are not among `jobs` are cancelled. The jobs are submitted within
    `prepare(queue)`, which writes the files that they need into the queue's directory.
    """
    options = with_dirs(options, find_queue_dir(source, options.settings))
    with RunQueue.for_file(source, options.settings) as queue:
        if session.log_level is not None:
            set_up_log(queue.queue_dir, session.log_level)
        background.begin_simulation(queue.store, queue.queue_dir, options.settings)
        with prepare(queue):
            change = queue.submit(jobs, options, complete=complete)
        before = None if job_table.has_work(queue.store) else job_table.counts(queue.store)
        with session.watch(queue) as observer:
            hooks = Hooks(session.feed or Feed(), observer or Quiet(), session.follow)
            code = queue.dispatch(options, devices, hooks=hooks, notify=session.notify)
        if queue.kept_lock is not None:
            detach(queue, devices, session.notify)
            hooks = replace(hooks, observer=Quiet())
            code = queue.dispatch(queue.newest or options, devices, hooks=hooks, submitted=False)
        if code == EXIT_DISPATCHED_ELSEWHERE:
            if session.quiet and not (change.add or change.requeue or change.cancel):
                return code
            pid, path, name = queue.queue_dir.dispatcher(), queue.queue_dir.path, queue_word(queue.queue_dir)
            session.notify(
                f"{path} is being dispatched by pid {pid}, which has taken this list; leaving (75); "
                f"`gpusched status {name}` shows it, `gpusched wait -q {name}` waits for its end"
            )
        elif not session.quiet or job_table.counts(queue.store) != before:
            session.summarize(queue, code)
        return code


def detach(queue: RunQueue, devices: BoxDevices, notify: Callable[[str], None]) -> None:
    """Return in a process of its own, without this terminal, which is to dispatch the queue. This process ends."""
    queue.store.close()  # two processes must share neither a database nor a source of readings
    devices.close()
    lock, queue.kept_lock = queue.kept_lock, None
    assert lock is not None
    if pid := background.fork(queue.queue_dir, lock):
        logout.warn(notify)
        name = queue_word(queue.queue_dir)
        notify(f"going on in the background (pid {pid}), where the checks of free GPUs begin again")
        notify(f"`gpusched status {name}` shows it, `gpusched stop {name}` ends it")
        raise SystemExit(EXIT_QUIT)


def set_up_log(queue_dir: QueueDir, level: str) -> None:
    """Have this process write the dispatcher's log in the queue's directory, for this user alone."""
    file = os.fdopen(queue_dir.open_log(), "a", encoding="utf-8", errors="backslashreplace")
    handler = logging.StreamHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logging.raiseExceptions = False  # a log that takes no line ends nothing and says nothing
    logger = logging.getLogger("gpusched")
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(handler)
