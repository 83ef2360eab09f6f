"""The workers of a pool as a crew: which there are, which are missing, what is known of their starts and ends."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from gpusched.core.model import JobRow, JobState
from gpusched.pool.coordinator.growth import ENDED_LOAD, FAILED_LOAD, DeviceLoad, Growth
from gpusched.pool.coordinator.peers import Peer
from gpusched.pool.coordinator.worker_jobs import WorkerJobs
from gpusched.pool.messages import CPU, Broken, Ready

LOADS_LIMIT = 3  # failed loads in a row, on every device that has a worker: the pool stops


def place_of(job: JobRow) -> str:
    """Return the device on which a worker is to start; empty if any one will do."""
    return job.gpu_model if job.gpus else CPU


def _log(text: str) -> None:
    print(text, flush=True)


class Crew:
    """The workers of one coordinator, whose log says what becomes of them."""

    def __init__(self, jobs: WorkerJobs, growth: Growth, *, capacity: int) -> None:
        self._jobs, self._growth, self._capacity = jobs, growth, capacity
        self._since_at = time.time()
        self._failed_loads = 0
        self._last_failure = "each one ends while it loads; its log may say why"
        self._split_by = ""
        self._began_s = float("inf")  # when the first one has begun to load
        self.facts: Counter[str] = Counter()  # for the summary: loads, deaths, …
        self.ready_s = 0.0  # until the first worker of each device was ready
        self._devices: set[str] = set()

    def running_jobs(self) -> set[int]:
        """Return the workers that run already, for an earlier coordinator."""
        return {job.id for job in self._jobs.open_jobs().values() if job.state is JobState.RUNNING}

    # ---- what happens ----

    def note_ready(self, peer: Peer, message: Ready) -> None:
        self.facts["loads"] += 1
        self._began_s = min(self._began_s, time.monotonic() - message.load_s)
        self._growth.device(peer.device).note_ready()
        if peer.device not in self._devices:
            self._devices.add(peer.device)
            self.ready_s = time.monotonic() - self._began_s
        _log(f"worker {peer.job} has loaded in {message.load_s:.1f} s")

    def note_broken(self, peer: Peer, message: Broken, *, is_load: bool) -> None:
        """Take note that a worker must end. One that could not load is not added again on its device."""
        _log(f"worker {peer.job} ends ({message.stage}): {message.failure.error}")
        if is_load:
            peer.has_failed_load = True
            self._failed_loads += 1
            self._last_failure = message.failure.error
            self._growth.device(peer.device).note_failed_load(FAILED_LOAD)

    def note_split(self, peer: Peer, error: str) -> None:
        """Take note that a batch has raised, and that its items were tried one by one."""
        if not self._split_by:
            _log(f"worker {peer.job}: a batch has raised {error}; its items were tried one by one")
        self.facts["splits"] += 1
        self._split_by = error

    def note_end(self, peer: Peer) -> None:
        if peer.done:
            self._failed_loads = self._growth.device(peer.device).points = 0
        if not peer.is_leaving:
            self.facts["deaths"] += 1
            if peer.device and not (peer.is_ready or peer.has_failed_load):
                self._growth.device(peer.device).note_failed_load(ENDED_LOAD)

    def end_of(self, peer: Peer) -> str:
        """Return how a worker that is gone has ended; empty while that is not known."""
        return self._jobs.end_of(peer.job, peer.met_at)

    # ---- who there is ----

    @staticmethod
    def is_only_one(peer: Peer, peers: Iterable[Peer]) -> bool:
        """Return True if no other worker is on its device."""
        return not any(other.device == peer.device and other is not peer for other in peers)

    @staticmethod
    def is_first(peer: Peer, peers: Iterable[Peer]) -> bool:
        """Return True for the one worker of a device that stays longest."""
        return next(other for other in peers if other.device == peer.device and not other.is_leaving) is peer

    def add_missing(self, peers: Collection[Peer], left: int, now: float) -> str:
        """Add the workers that `left` items are worth. Return why no worker can start; empty if that is not so."""
        here = [peer for peer in peers if not peer.is_leaving]
        is_hopeful = any(peer.is_ready or not self._growth.device(peer.device).points for peer in here if peer.device)
        if self._failed_loads >= LOADS_LIMIT and not is_hopeful:
            return f"no worker can load: {self._last_failure}"
        jobs = self._jobs.open_jobs()
        absent = Counter(place_of(job) for job in jobs.values() if job.id not in {peer.job for peer in peers})
        wanted = max(0, -(-left // self._capacity) - len(here) - absent.total())
        loads = {
            device: DeviceLoad(
                sum(peer.done > 0 for peer in here if peer.device == device),
                sum(not peer.done for peer in here if peer.device == device) + absent[device],
                sum(peer.done for peer in peers if peer.device == device),
            )
            for device in filter(None, dict.fromkeys([*(peer.device for peer in here), *absent]))
        }
        one_by_one = self._jobs.settings.gpu_strategy == "fill-first"
        anywhere, more = self._growth.missing(loads, absent[""], wanted, now, one_by_one=one_by_one)
        for device, number in {"": anywhere, **more}.items():
            if number:
                self._jobs.add(number, device)
        is_given_up = wanted and not (here or jobs or anywhere or more)
        return f"no worker can load: {self._last_failure}" if is_given_up else ""

    def cancel_waiting(self) -> None:
        """Cancel the workers that have not started: there is nothing left for them."""
        self._jobs.cancel(self._jobs.waiting())

    def cancel_all_but(self, jobs: Iterable[int]) -> None:
        """Cancel the workers that are not among these, and count those that run."""
        others = self._jobs.open_jobs().keys() - set(jobs)
        self.facts["late"] = len(others & self.running_jobs())
        self._jobs.cancel(others)

    def cancel_all(self) -> None:
        self._jobs.cancel(self._jobs.open_jobs())

    def summary(self, **more: float) -> str:
        """Return what is known of the workers of this run, for the summary, as JSON."""
        labels = self._jobs.labels(self._since_at)
        facts: dict[str, Any] = {"gpus": len(self._devices), "held": len(labels), "labels": labels}
        facts |= {"ready_s": round(self.ready_s, 1), "split_by": self._split_by}
        return json.dumps({**self.facts, **facts, **more})
