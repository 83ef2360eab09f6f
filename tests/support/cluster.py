"""A cluster without processes: heads and agents on real stores, and nodes whose jobs run by the clock of the test.

A node does what its dispatcher and its shepherds would: it starts waiting jobs, heeds the deadline of each, and books
the ends. `executions` has all that ever ran anywhere, by the one true time.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpusched.cluster.agent import Agent, NodePlace
from gpusched.cluster.head import Head
from gpusched.cluster.leases import LeaseTerms
from gpusched.cluster.messages import LEAVES, Reply
from gpusched.common.errors import GpuschedError
from gpusched.core.jobs.lifecycle import FENCED, judge
from gpusched.core.model import DeviceUse, JobRow, JobSpec, JobState, Outcome, OutcomeKind, Requirements
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.board import Board, BoardDevice
from gpusched.core.plan.snapshot import Limits, Resident
from gpusched.host.attempts import fence
from gpusched.host.queue import published, queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table, meta_table, submission
from gpusched.host.store.attempt_table import AttemptEnd
from tests.support import build

TERMS = LeaseTerms(lease_s=60, grace_s=5, margin_s=5)


@dataclass
class Execution:
    """One run of a job on a node, by the time of the test."""

    job: str  # its name
    node: str
    began: float
    ends: float
    code: int
    ended: float | None = None
    local_id: int = 0
    known: bool = False  # the head was given its end


class World:
    """The time of a test, and all that has run in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 1000.0
        self.executions: list[Execution] = []
        self.codes: dict[str, list[int]] = {}  # by job: the exit codes to come

    def make_queue(self, name: str) -> QueueDir:
        queue = queue_dirs.locate(str(self.root / name))
        queue_dirs.prepare(queue)
        Store(queue.database, create=True).close()
        return queue

    def overlaps(self) -> list[tuple[Execution, Execution]]:
        """The executions of one job that ran at the same time."""
        pairs = []
        for n, one in enumerate(self.executions):
            for other in self.executions[n + 1 :]:
                until = [self.now if each.ended is None else each.ended for each in (one, other)]
                if one.job == other.job and one.began < until[1] and other.began < until[0]:
                    pairs.append((one, other))
        return pairs


class HeadBox:
    """The box of the head; `head` is None while it is down."""

    def __init__(self, world: World, **settings: object) -> None:
        self.world = world
        self.queue = world.make_queue("head")
        with Store(self.queue.database) as store:
            meta_table.write(store, "set", json.dumps(settings))
        self.head: Head | None = None
        self.terms = TERMS
        self.offset_s = 5000.0
        self.start()

    def start(self) -> None:
        world = self.world
        self.head = Head(self.queue, self.terms, clock_s=lambda: world.now + self.offset_s, wall=lambda: world.now)

    def stop(self) -> None:
        if self.head is not None:
            self.head.close()
        self.head = None

    def add(self, name: str, **needs: object) -> int:
        """Submit a job of this name that may be tried again as often as it is needed."""
        wanted = Requirements(**{"name": name, "cwd": b"/", "retries": 3, **needs})  # type: ignore[arg-type]
        with Store(self.queue.database) as store:
            spec = JobSpec(name.encode(), name.encode(), 1, key=os.urandom(8))
            ((job_id, _),) = submission.add(store, [spec], lambda _: wanted, self.world.now)
            return job_id

    def jobs(self) -> list[JobRow]:
        with Store(self.queue.database) as store:
            return list(job_table.jobs(store))


class NodeBox:
    """A node with some GPUs; `agent` is None while it is down."""

    def __init__(self, world: World, name: str, gpus: int = 2, *, skew_s: float = 0.0, busy: int = 0) -> None:
        self.world, self.name, self.gpus, self.busy = world, name, gpus, busy
        self.queue = world.make_queue(name)
        self.lock = self.queue.take()
        self.tags: frozenset[str] = frozenset()
        self.agent: Agent | None = None
        self.terms = TERMS
        self.offset_s = 77.0 * len(name) + sum(map(ord, name))
        self.skew_s = skew_s  # of its wall clock
        self.is_up = True
        self.closed = ""  # by the word of its dispatcher
        self.leaves = False
        self.running: list[Execution] = []
        self.start()

    def clock_s(self) -> float:
        return self.world.now + self.offset_s

    def wall(self) -> float:
        return self.world.now + self.skew_s

    def start(self) -> None:
        place = NodePlace(self.name, self.queue, self.tags)
        closed = lambda: LEAVES if self.leaves else ""  # noqa: E731
        self.agent = Agent(place, self.terms, closed=closed, clock_s=self.clock_s, wall=self.wall)
        self.publish()

    def stop(self) -> None:
        if self.agent is not None:
            self.agent.close()
        self.agent = None

    def uuid(self, index: int) -> str:
        return f"GPU-{self.name}-{index}"

    def publish(self) -> None:
        """Publish the board, as the dispatcher does."""
        with Store(self.queue.database) as store:
            on = {d.uuid: job.id for job, row in attempt_table.running(store) for d in row.devices}
        devices = []
        for n in range(self.gpus):
            uuid = self.uuid(n)
            device = build.device(n, uuid=uuid)
            state = DeviceState.BUSY if n < self.busy else DeviceState.RUNNING if uuid in on else DeviceState.FREE
            residents = (Resident(on[uuid], 0),) if uuid in on else ()
            view = build.device_view(n, state, held=uuid in on, residents=residents, name=device.name)
            view = replace(view, availability=replace(view.availability, uuid=uuid))
            devices.append(BoardDevice(device, view))
        limits = Limits(max_gpus=self.gpus, cpu_jobs=1)
        board = Board(self.wall(), os.getpid(), "test", limits, 1, 500 << 20, tuple(devices), self.closed)
        published.write(self.queue.board, board)

    # ---- what its dispatcher and its shepherds do ----

    def work(self) -> None:
        """End what has ended or is fenced, and start what may start."""
        if not self.is_up:
            return
        with Store(self.queue.database) as store:
            for each in list(self.running):
                deadline = self._deadline(each.local_id)
                asked = job_table.get(store, each.local_id).cancel_requested_at is not None
                if each.ends <= min(self.world.now, self._true(deadline)) and not asked:
                    self._end(store, each, each.ends, Outcome(OutcomeKind.EXITED, each.code))
                elif self._true(deadline) + TERMS.grace_s <= self.world.now:  # it heeds no TERM
                    fenced = Outcome(OutcomeKind.INTERRUPTED, cause=FENCED)
                    self._end(store, each, self._true(deadline) + TERMS.grace_s, fenced)
                elif asked:
                    self._end(store, each, self.world.now, Outcome(OutcomeKind.CANCELLED))
            taken = {d.uuid for _, row in attempt_table.running(store) for d in row.devices}
            free = [self.uuid(n) for n in range(self.busy, self.gpus) if self.uuid(n) not in taken]
            for job in list(job_table.waiting(store)):
                if len(free) < job.gpus:
                    break
                devices = [DeviceUse(free.pop(0), 0) for _ in range(job.gpus)]
                attempt_table.start(store, job.id, self.wall(), "logs/x.log", "", devices)
                self._begin(store, job)
        self.publish()

    def _begin(self, store: Store, job: JobRow) -> None:
        if self._true(self._deadline(job.id)) <= self.world.now:
            outcome = Outcome(OutcomeKind.INTERRUPTED, cause=FENCED)
            self._close(store, job.id, self.world.now, outcome)
            return
        codes = self.world.codes.get(job.name, [])
        length, code = (float(word) for word in os.fsdecode(job.command).split("/")[1:3])
        code = codes.pop(0) if codes else int(code)
        now = self.world.now
        execution = Execution(job.name, self.name, now, now + length, int(code), local_id=job.id)
        self.world.executions.append(execution)
        self.running.append(execution)

    def _end(self, store: Store, each: Execution, at: float, outcome: Outcome) -> None:
        each.ended = at
        self.running.remove(each)
        self._close(store, each.local_id, at, outcome)

    def _close(self, store: Store, job_id: int, at: float, outcome: Outcome) -> None:
        job = job_table.get(store, job_id)
        verdict = judge(outcome, job, cancel_asked=job.cancel_requested_at is not None)
        attempt_table.close(store, job_id, job.attempts, AttemptEnd(outcome, at + self.skew_s), verdict, now=at)

    def _deadline(self, local_id: int) -> float:
        try:
            return float(Path(fence.path_of(self.queue.state, local_id)).read_text().split()[0])
        except OSError:
            return 0.0

    def _true(self, deadline_s: float) -> float:
        return deadline_s - self.offset_s

    def power_cut(self) -> None:
        """End all at once, without a record."""
        self.stop()
        self.is_up = False
        for each in self.running:
            each.ended = self.world.now
        self.running.clear()

    def boot(self) -> None:
        """Come back: the deadlines of the last boot do not count, what ran is lost."""
        self.is_up = True
        for path in Path(f"{self.queue.state}/leases").glob("*"):
            path.unlink()
        with Store(self.queue.database) as store:
            for job, _ in attempt_table.running(store):
                self._close(store, job.id, self.world.now, Outcome(OutcomeKind.LOST))
        self.start()


def talk(head: HeadBox, node: NodeBox) -> Reply | None:
    """Let an agent speak with the head once, if both are up."""
    if head.head is None or node.agent is None:
        return None
    with suppress(GpuschedError):
        request = node.agent.request()
        reply = head.head.exchange(request)
        node.agent.apply(request, reply)
        return reply
    return None


def states(head: HeadBox) -> dict[JobState, int]:
    with Store(head.queue.database) as store:
        return {state: n for state, n in job_table.counts(store).items() if n}
