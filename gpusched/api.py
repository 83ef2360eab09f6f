"""The library's public face: a queue, submitting to it, dispatching it. Prints nothing.

from gpusched.api import Queue
queue = Queue.for_file("commands.txt")
queue.submit_file("commands.txt")
exit_code = queue.dispatch()
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusched.common.errors import EXIT_DISPATCHED_ELSEWHERE, EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.common.text import mask_secrets
from gpusched.config.settings import LoadedSettings, Settings
from gpusched.core.jobs.reconcile import QueueChange
from gpusched.core.model import Device, Reading
from gpusched.core.plan import selection
from gpusched.dispatcher import Dispatcher, Observer
from gpusched.dispatcher.feed import Feed
from gpusched.host.code.job_dirs import JobDirs
from gpusched.host.gpus import board
from gpusched.host.gpus.claims import Claims, find_directory
from gpusched.host.gpus.device_source import DeviceSource, NoSource, open_source, read_once
from gpusched.host.queue import queue_dir
from gpusched.host.queue.queue_dir import QueueDir
from gpusched.host.store import Store
from gpusched.lists.jobfile import JobFile
from gpusched.lists.submit import SubmitOptions, Typed, refuse_impossible, submit
from gpusched.shards.split import shard_range as shard_range
from gpusched.shards.split import split_range as split_range

if TYPE_CHECKING:
    from gpusched.esd import EsdConfig as EsdConfig
    from gpusched.esd import EsdExperiment as EsdExperiment

STREAM = "-"
Source = str | Typed  # a file of jobs, STREAM, or what was typed in the place of one
ACK_STEP_S = 0.05
SLOW_ACK_S = 5.0  # after this long without an answer, say what is waited for

_JOB_VARIABLES = ("GPUSCHED_JOB_ID", "GPUSCHED_DEVICES")


@dataclass
class Devices:
    """An opened GPU source and a complete reading of it."""

    source: DeviceSource
    first: Reading

    def close(self) -> None:
        self.source.close()


def open_devices(settings: Settings, gpus: int | None = None) -> Devices:
    """Open the GPUs that the settings name and read them once. `gpus` is what the jobs want, if not by the settings.

    Raises GpuschedError (exit 3) where there are none, unless the jobs want none.
    """
    gpus = settings.gpus_per_job if gpus is None else gpus
    source = open_source(settings.simulate)
    try:
        return Devices(source, read_once(source))
    except GpuschedError:
        source.close()
        if gpus == 0:
            none = NoSource()
            return Devices(none, Reading(time.time(), time.time()))
        raise
    except BaseException:
        source.close()
        raise


def check_devices(settings: Settings, devices: tuple[Device, ...], gpus: int | None = None) -> selection.Selection:
    """Refuse at once what this box can never meet, and a run nested in a job on the same GPUs."""
    gpus = settings.gpus_per_job if gpus is None else gpus
    chosen = selection.select(
        devices,
        wanted=settings.gpu_list,
        outer_mask=os.environ.get("CUDA_VISIBLE_DEVICES"),
        outer_order=os.environ.get("CUDA_DEVICE_ORDER"),
        gpus_per_job=gpus,
        max_gpus=settings.max_gpus,
    )
    job, given = (os.environ.get(name) for name in _JOB_VARIABLES)
    mine = set((given or "").split(",")) & set(chosen.uuids)
    if job and mine and gpus:
        raise GpuschedError(
            f"this is job {job} of another gpusched, and its GPU is the one that you ask for",
            where=os.environ.get("GPUSCHED_QUEUE", ""),
            hint="the outer one holds that GPU until this job ends; run the list outside, or with --gpus-per-job 0",
        )
    return chosen


def check_jobs(jobs: JobFile, rules: SubmitOptions, devices: tuple[Device, ...]) -> None:
    """Refuse at once what these devices can never serve, by the options or by what a job says of itself."""
    chosen = check_devices(rules.settings, devices, rules.gpus_wanted(jobs.specs))
    refuse_impossible(jobs.specs, rules, [device for device in devices if device.uuid in chosen.uuids])


class Queue:
    """One queue: its place, its database, and what can be done with it."""

    def __init__(self, place: QueueDir, settings: Settings | None = None) -> None:
        """A queue that is there. Raises GpuschedError otherwise."""
        self.place = place
        self.settings = settings or Settings()
        self.store = Store(place.database)

    @classmethod
    def for_file(cls, source: Source, settings: Settings | None = None) -> Queue:
        """The queue of a job file (or "-", or what was typed), made if it is not there.

        A queue belongs to one file: another file of the same stem gets a name with a hash, and an explicit
        log_dir that belongs to another file is refused.
        """
        settings = settings or Settings()
        place = place_for(source, settings)
        while (found := _make(place, _owner(source))) is not None:
            another = place_for(source, settings)  # a file of the same stem may have been faster by a hair
            if another == place:
                raise _other_file(place, found)
            place = another
        queue_dir.remember(place)
        queue = cls(place, settings)
        if not isinstance(source, str):
            queue.store.set_meta("typed", json.dumps([source.stem, source.words]))
        return queue

    def close(self) -> None:
        self.store.close()

    def submit(self, jobs: JobFile, rules: SubmitOptions, *, complete: bool = True) -> QueueChange:
        """Make the queue hold these jobs. The dispatcher, if there is one, takes the newer options too."""
        dirs = rules.dirs or job_dirs(self.place, rules)
        rules = replace(rules, dirs=dirs)
        rules.look_around(jobs.specs)
        with self.store.transaction():
            self.store.set_meta("dirs", dirs.to_json())
            self.store.set_meta("settings", rules.settings.to_json())
            self.store.set_meta("on_dep_fail", rules.settings.on_dep_fail)
            return submit(self.store, jobs.specs, rules, time.time(), complete=complete)

    def dispatch(
        self,
        rules: SubmitOptions,
        devices: Callable[[], Devices],
        *,
        feed: Feed | None = None,
        observer: Observer | None = None,
        follow: bool = False,
        waiting: Callable[[str], None] = lambda text: None,
        step: Callable[[str], None] = lambda name: None,
    ) -> int:
        """Dispatch until all has ended; the exit code. 75 when another dispatcher took what was submitted.

        `devices` is called once this process is the dispatcher. `waiting` is told what is waited for, if long.
        """
        request = self.store.request("submitted", time.time())
        step("requested")
        self.place.ring()
        began = time.monotonic()
        told = False
        while (lock := self.place.take()) is None:
            if self.store.is_acknowledged(request):
                return EXIT_DISPATCHED_ELSEWHERE
            if not told and time.monotonic() - began > SLOW_ACK_S:
                told = True
                pid = self.place.dispatcher()
                waiting(f"waiting for the dispatcher of {self.place.path} (pid {pid}), which is leaving or slow")
            time.sleep(ACK_STEP_S)
        opened = devices()
        try:
            claims = Claims(find_directory(rules.settings.claims_dir))
            while True:
                dispatcher = Dispatcher(
                    self.place,
                    self.store,
                    opened.source,
                    claims,
                    rules,
                    opened.first,
                    feed=feed,
                    observer=observer,
                    follow=follow,
                    step=step,
                )
                code = dispatcher.run()
                os.close(lock)
                step("left")
                if dispatcher.draining or code not in (EXIT_OK, EXIT_SOME_FAILED) or not self.store.has_work():
                    return code
                # somebody submitted between the last look and the lock's end
                again = self.place.take()
                if again is None:
                    return code
                lock = again
        finally:
            opened.close()


def job_dirs(place: QueueDir, rules: SubmitOptions) -> JobDirs:
    """Where the jobs of these rules run. Raises GpuschedError for a snapshot of what git does not know."""
    copies = os.path.join(place.path, "snapshots") if rules.settings.snapshot else ""
    return JobDirs(os.fsdecode(rules.cwd), (place.path, place.state), copies)


def place_for(source: Source, settings: Settings) -> QueueDir:
    """Where the queue of this file lies, made or not."""
    if settings.log_dir:
        return queue_dir.locate(settings.log_dir, settings.state_dir)
    if source == STREAM:
        name = time.strftime("stdin-%Y%m%d-%H%M%S") + f"-{os.getpid()}"
        return queue_dir.locate(queue_dir.default_path(name), settings.state_dir)
    stem = os.path.splitext(os.path.basename(source))[0] if isinstance(source, str) else source.stem
    place = queue_dir.locate(queue_dir.default_path(stem), settings.state_dir)
    if place.exists():
        store = Store(place.database)
        try:
            if store.source() not in (None, _owner(source)):
                hashed = queue_dir.default_path(stem, os.fsdecode(_owner(source)))
                return queue_dir.locate(hashed, settings.state_dir)
        finally:
            store.close()
    return place


def _make(place: QueueDir, owner: bytes) -> bytes | None:
    """Make the queue of this owner, or find it made; the owner that it has instead, if so."""
    queue_dir.prepare(place)
    store = Store(place.database, create=True)
    try:
        with store.transaction():
            found = store.source()
            if found is None:
                store.set_meta("source", owner)
        return None if found in (None, owner) else found
    finally:
        store.close()


def _owner(source: Source) -> bytes:
    if not isinstance(source, str):
        return source.owner
    return b"-" if source == STREAM else os.fsencode(os.path.abspath(source))


def _other_file(place: QueueDir, found: bytes) -> GpuschedError:
    name = "standard input" if found == b"-" else mask_secrets(found.decode("utf-8", "replace"))
    return GpuschedError(
        f"this directory is the queue of another list: {name}",
        where=place.path,
        hint="choose another --log-dir, or leave it out",
    )


def names_in(place: QueueDir) -> set[str]:
    """Names and tags that jobs of the queue bear: what the jobs of a list may depend on besides each other."""
    if not place.exists():
        return set()
    store = Store(place.database)
    try:
        return store.names()
    finally:
        store.close()


def has_work(place: QueueDir) -> bool:
    """Whether the queue is there and a dispatcher works on it, or jobs of it wait or run."""
    if not place.exists():
        return False
    if place.dispatcher() is not None:
        return True
    store = Store(place.database)
    try:
        return store.has_work()
    finally:
        store.close()


def settings_for(place: QueueDir, loaded: LoadedSettings) -> Settings:
    """The settings for a start: while a dispatcher works on the queue, its own, but for what was given this time.

    So a start that says less, from cron or retyped, lifts no limit that the running one was given.
    """
    if not place.exists() or place.dispatcher() is None:
        return loaded.settings
    store = Store(place.database)
    try:
        text = store.meta("settings")
    finally:
        store.close()
    if text is None:
        return loaded.settings
    given = {name: getattr(loaded.settings, name) for name, origin in loaded.origins.items() if origin != "default"}
    return replace(Settings.from_json(text), **given)


def look(place: QueueDir, settings: Settings, gpus: int) -> tuple[Devices | None, tuple[Device, ...]]:
    """The devices of this box, for jobs that want `gpus`: opened, unless a dispatcher of this queue has them open.

    Of that one, what it has published, which may be nothing yet. Close what was opened, or hand it to `dispatch`.
    """
    if place.exists() and place.dispatcher() is not None:
        return None, known_devices(place)
    devices = open_devices(settings, gpus)
    return devices, devices.first.devices


def known_devices(place: QueueDir) -> tuple[Device, ...]:
    """The devices that the queue's dispatcher published; empty without one."""
    found = board.read(place.board)
    return tuple(item.device for item in found.devices) if found else ()


def set_up_log(place: QueueDir, level: str) -> None:
    """The dispatcher's log, in the queue directory: what happened and when, for this user alone."""
    # what no line shows need not be found out for each of them (see "Optimization" in logging's manual)
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.fdopen(os.open(place.log, flags, 0o600), "a", encoding="utf-8", errors="backslashreplace")
    handler = logging.StreamHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger("gpusched")
    logger.setLevel(level)
    logger.propagate = False
    logger.addHandler(handler)


def __getattr__(name: str) -> object:
    """Load the classes of a feature on first use."""
    if name in ("EsdConfig", "EsdExperiment"):
        from gpusched import esd

        return getattr(esd, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
