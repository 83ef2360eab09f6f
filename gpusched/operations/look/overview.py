"""All that a screen shows of queues and of the GPUs at one moment, for `top` and `web`. Changes nothing.

It is read again and again: what has not changed is not read anew, and what takes long is read less often.
Everything comes from what `status`, `devices`, `explain` and `report` read, so that they cannot disagree.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings
from gpusched.core.jobs.job_filter import EVERY_JOB, JobFilter
from gpusched.core.model import AttemptRow, JobState
from gpusched.host.queue import samples
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import attempt_table, job_table
from gpusched.operations import queues
from gpusched.operations.box.devices import open_devices
from gpusched.operations.box.report import read_boards, read_box
from gpusched.operations.look.explain import report_job
from gpusched.operations.look.status import board_now, read_running_lines, report_queue, summarize_queue, with_last
from gpusched.operations.look.story import read_last_lines
from gpusched.operations.queues import OpenQueue
from gpusched.views.devices import box_line
from gpusched.views.job_lines import JobLine, job_line
from gpusched.views.report import DeviceLine
from gpusched.views.story.values import CurvePoint, job_curves
from gpusched.views.values import BoxReport, DeviceReport, JobReport, QueueReport, QueueSummary
from gpusched.views.words import shorten

T = TypeVar("T")

PACE = 75  # times what a reading has taken go by before the next one: it takes 1.3 % of a core at most
SHOWN_QUEUES = 60
QUEUES_S = 5.0  # between two looks for new queues
BOX_S = 2.0  # between two readings of claims, and of GPUs that nobody dispatches
AGAIN_S = 60.0  # before GPUs are looked for again where there were none
PULSE_S = 900.0
LOG_LINES = 200
NO_BOX = BoxReport((), ())


class Focus(NamedTuple):
    """A wish for what to see: a queue by its path (empty: the first one), which of its jobs, and one job in full."""

    queue: str = ""
    wanted: JobFilter = EVERY_JOB
    job: int | None = None


NO_FOCUS = Focus()


class Pulse(NamedTuple):
    """A GPU at one moment: the parts of its memory and of its time that are used, from 0 to 1; None: not known."""

    at: float
    memory: float | None
    use: float | None


class JobDetails(NamedTuple):
    """One job in full, as `explain` tells it, with the end of its log and its use of GPUs over time."""

    report: JobReport
    log: Sequence[str]
    log_path: str
    curve: Sequence[CurvePoint]


class Overview(NamedTuple):
    """The queues and GPUs at the moment `now`. `queue` is the one in focus, `jobs` are the ids of its jobs in order."""

    now: float
    path: str = ""  # of the queue in focus; empty: there is none
    queue_dir: QueueDir | None = None
    queue: QueueReport | None = None
    queues: Mapping[str, QueueSummary] = MappingProxyType({})  # all of them by path, each by its name after -q
    jobs: Sequence[int] = ()
    job: JobDetails | None = None
    box: BoxReport = NO_BOX
    devices: Sequence[DeviceLine] = ()  # those of `box`
    no_gpus: str = ""  # why there are none
    pulses: Mapping[str, Sequence[Pulse]] = MappingProxyType({})  # by UUID, of the last minutes
    broken: Sequence[str] = ()  # a text for each queue that cannot be read


class Kept(Generic[T]):
    """A value with its key and its version. Another key has it read at once, another version when it is time to."""

    def __init__(self) -> None:
        self._known: tuple[object, object, T] | None = None

    def get(self, key: object, version: object, read: Callable[[], T], *, is_time: bool = True) -> T:
        known = self._known
        if known is None or known[0] != key or (is_time and known[1] != version):
            self._known = known = key, version, read()
        return known[2]


class _Watched:
    """One queue, whose database stays open, with what was read of it."""

    def __init__(self, queue_dir: QueueDir) -> None:
        self.queue_dir, self.name = queue_dir, queues.queue_name(queue_dir)
        self.store = queues.open_store(queue_dir)
        self._file = os.stat(queue_dir.database)
        self.summary, self.report = Kept[QueueSummary](), Kept[QueueReport]()
        self.jobs, self.job = Kept[Sequence[int]](), Kept[JobReport]()
        self.log, self.curve = Kept[Sequence[str]](), Kept[Sequence[CurvePoint]]()
        self.version: object = None
        self.full_s = -math.inf  # when all of it is to be read again

    def look(self) -> OpenQueue:
        """Read what is cheap. Raises GpuschedError if the queue is gone, or cannot be read."""
        if not os.path.exists(self.queue_dir.database) or not os.path.samestat(
            os.stat(self.queue_dir.database), self._file
        ):
            raise GpuschedError("this queue was removed", where=self.queue_dir.path)
        opened = queues.look(self.queue_dir, self.store)
        dispatcher = opened.dispatcher
        looked_at = dispatcher.board.at if dispatcher.board is not None else None
        self.version = self.store.data_version(), dispatcher.pid, looked_at, dispatcher.closed
        return opened

    def summarize(self, opened: OpenQueue, *, is_time: bool) -> QueueSummary:
        return self.summary.get(None, self.version, lambda: summarize_queue(opened, self.name), is_time=is_time)

    def report_all(self, opened: OpenQueue, *, is_time: bool) -> QueueReport:
        """Return the report of the queue, with its running jobs as they are now."""
        known = self.report.get(None, self.version, lambda: report_queue(opened), is_time=is_time)
        if known.scene.now == opened.now:  # it was read just now
            return known
        return known._replace(scene=known.scene._replace(now=opened.now), running=read_running_lines(opened))

    def select(self, opened: OpenQueue, wanted: JobFilter, *, is_time: bool) -> Sequence[int]:
        version = self.store.data_version()
        return self.jobs.get(wanted, version, lambda: job_table.select(self.store, wanted, opened.now), is_time=is_time)

    def find_log(self, job_id: int) -> tuple[AttemptRow | None, str]:
        """Return the newest attempt of a job and the path of its log; "" where it has none."""
        row = attempt_table.newest(self.store, [job_id]).get(job_id)
        return row, f"{self.queue_dir.path}/{row.error_log or row.log}" if row is not None and row.log else ""

    def detail(self, opened: OpenQueue, job_id: int, *, is_time: bool) -> JobDetails | None:
        """Return one job in full; None if it was cleaned away."""
        row, path = self.find_log(job_id)
        written, sampled = _stamp(path), _stamp(self.queue_dir.samples)
        try:
            report = self.job.get(job_id, (self.version, written), lambda: report_job(opened, job_id), is_time=is_time)
        except GpuschedError:
            return None
        return JobDetails(
            report._replace(scene=report.scene._replace(now=opened.now)),
            self.log.get(path, written, lambda: read_last_lines(self.queue_dir, row, LOG_LINES)),
            path,
            self.curve.get(
                job_id,
                sampled,
                lambda: job_curves(samples.read(self.queue_dir.samples), job_id).get(job_id, ()),
                is_time=is_time,
            ),
        )


def _stamp(path: str) -> tuple[int, int] | None:
    """Return size and time of a file; None if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


class OverviewReader:
    """Reads overviews of the queues that `choose` returns, always in the same thread. A context manager."""

    def __init__(self, choose: Callable[[], Sequence[QueueDir]], settings: Settings) -> None:
        self._choose, self._settings = choose, settings
        self._watched: dict[str, _Watched] = {}
        self._broken: dict[str, str] = {}
        self._box = Kept[BoxReport]()
        self._devices = open_devices(settings, 1)
        self._no_gpus = ""
        self._pulses: dict[str, deque[Pulse]] = {}
        self._choose_s = self._devices_s = -math.inf  # when the next reading is due

    def __enter__(self) -> OverviewReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._devices.close()
        for watched in self._watched.values():
            watched.store.close()

    def hurry(self) -> None:
        """Have everything that has changed read at the next call: a person has just changed it."""
        for watched in self._watched.values():
            watched.full_s = -math.inf

    def read(self, focus: Focus = NO_FOCUS) -> Overview:
        """Return what is to be seen now."""
        now_s, began_s = time.monotonic(), time.thread_time()
        opened = self._look(now_s)
        chosen = focus.queue if focus.queue in opened else next(iter(opened), "")
        own = self._watched.get(chosen)
        is_time = own is not None and now_s >= own.full_s
        box = self._read_box(opened, now_s)
        now = queues.now()
        view = Overview(
            now,
            box=box,
            devices=[box_line(each, now) for each in box.devices],
            no_gpus=self._no_gpus,
            pulses={uuid: tuple(pulses) for uuid, pulses in self._pulses.items()},
        )
        summaries = {}
        for path, queue in opened.items():
            watched = self._watched[path]
            try:
                if path != chosen:
                    summaries[path] = watched.summarize(queue, is_time=is_time)
                    continue
                report = watched.report_all(queue, is_time=is_time)
                jobs = watched.select(queue, focus.wanted, is_time=is_time)
                job = None if focus.job is None else watched.detail(queue, focus.job, is_time=is_time)
                summaries[path] = report.summary._replace(name=watched.name)
                view = view._replace(path=path, queue_dir=watched.queue_dir, queue=report, jobs=jobs, job=job)
            except GpuschedError as error:
                self._give_up(path, error)
        if own is not None and is_time:
            took_s = time.thread_time() - began_s
            own.full_s = now_s + (PACE * took_s if math.isfinite(own.full_s) else 0.0)  # the first one takes longer
        return view._replace(queues=summaries, broken=list(self._broken.values()))

    def read_jobs(self, view: Overview, ids: Sequence[int]) -> list[JobLine]:
        """Return lines for these jobs of the queue in focus, without those that were cleaned away.

        What their commands share is left out. A waiting one says why, but for what the head of the page says.
        """
        if view.queue is None or view.path not in self._watched:
            return []
        store, running = self._watched[view.path].store, {line.job_id: line for line in view.queue.running}
        jobs = [(job, job_line(job, last, view.now)) for job, last in with_last(store, job_table.some(store, ids))]
        lines = []
        for (job, line), text in zip(jobs, shorten([line.text for _, line in jobs]), strict=True):
            line = line._replace(text=text)
            kind, why = view.queue.reasons.get(job.id, ("", ""))
            if job.state is JobState.QUEUED and kind not in ("", "nobody"):
                line = line._replace(how=why.partition(": ")[0] if kind == "behind" else why)
            elif job.state is JobState.RUNNING and (own := running.get(job.id)):
                line = line._replace(how=own.mark or next(iter(own.texts), ""), fraction=own.fraction)
            lines.append(line)
        return lines

    def find_log(self, path: str, job_id: int) -> str:
        """Return the path of the newest log of a job in the queue of this path; "" where it has none."""
        return self._watched[path].find_log(job_id)[1] if path in self._watched else ""

    # ---- queues ----

    def _look(self, now_s: float) -> dict[str, OpenQueue]:
        """Return the queues that can be read, by their paths, those with a dispatcher first."""
        if now_s >= self._choose_s:
            self._choose_s = now_s + QUEUES_S
            self._find_queues()
        opened = {}
        for path, watched in list(self._watched.items()):
            try:
                opened[path] = watched.look()
            except (GpuschedError, OSError) as error:
                self._give_up(path, error)
        return opened

    def _find_queues(self) -> None:
        known = sorted(self._choose(), key=lambda queue_dir: queue_dir.dispatcher() is None)[:SHOWN_QUEUES]
        chosen = {queue_dir.path: queue_dir for queue_dir in known}
        for path in self._watched.keys() - chosen.keys():
            self._watched.pop(path).store.close()
        self._broken.clear()
        for path, queue_dir in chosen.items():
            try:
                if path not in self._watched:
                    self._watched[path] = _Watched(queue_dir)
                    self._recall(queue_dir)
            except (GpuschedError, OSError) as error:
                self._broken[path] = str(error)
        self._watched = {path: self._watched[path] for path in chosen if path in self._watched}

    def _give_up(self, path: str, error: Exception) -> None:
        self._watched.pop(path).store.close()
        self._broken[path] = str(error)

    # ---- GPUs ----

    def _read_box(self, opened: Mapping[str, OpenQueue], now_s: float) -> BoxReport:
        """Return the GPUs as the dispatchers of these queues have published them; else as `devices` reads them."""
        names = {path: self._watched[path].name if len(opened) > 1 else "" for path in opened}
        found = [(board_now(queue), names[path]) for path, queue in opened.items()]
        boards = [(board, name) for board, name in found if board is not None and board.devices]
        turn = int(now_s / BOX_S)
        if boards:
            self._devices.close()
            self._no_gpus = ""
            version = (turn, *(board for board, _ in boards))
            box = self._box.get("boards", version, lambda: read_boards(boards, self._settings))
        else:
            box = self._box.get("box", turn, lambda: self._read_devices(now_s))
        for each in box.devices:
            self._feel(each)
        return box

    def _read_devices(self, now_s: float) -> BoxReport:
        if now_s < self._devices_s:
            return NO_BOX
        try:
            self._no_gpus = ""
            return read_box(self._devices, self._settings)
        except GpuschedError as error:
            self._devices_s, self._no_gpus = now_s + AGAIN_S, str(error)
            return NO_BOX

    def _feel(self, each: DeviceReport) -> None:
        """Add the newest sample of a GPU to its pulses."""
        sample = each.item.view.availability.sample
        pulses = self._pulses.setdefault(each.item.device.uuid, deque())
        if sample is None or (pulses and pulses[-1].at >= sample.at):
            return
        memory = None if sample.used_bytes is None else sample.used_bytes / (each.item.view.total_bytes or math.inf)
        pulses.append(Pulse(sample.at, memory, sample.utilisation))
        while pulses[0].at < sample.at - PULSE_S:
            pulses.popleft()

    def _recall(self, queue_dir: QueueDir) -> None:
        """Take the pulses of the last minutes from what the dispatcher of a queue has kept."""
        if queue_dir.dispatcher() is None:
            return
        since = queues.now() - PULSE_S
        for stretch in samples.read(queue_dir.samples):
            for uuid, gpu in stretch.gpus.items() if stretch.ended_at >= since else ():
                memory = None if gpu.used_mib is None else gpu.used_mib / (gpu.total_mib or math.inf)
                self._pulses.setdefault(uuid, deque()).append(Pulse(stretch.ended_at, memory, gpu.use))
