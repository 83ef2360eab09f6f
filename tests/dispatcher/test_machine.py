"""A dispatcher's core against a small world that does what it likes: the design's invariants hold at every step.

The world is pure: colleagues come and go, other queues claim, readings fail, attempts end in every way, people
cancel and requeue, the dispatcher itself is killed. In the end the world turns friendly, and all jobs must end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpusched.core.jobs.lifecycle import LOSS_LIMIT, TERMINATED, InvalidTransition, JobEvent, Verdict, next_state, steer
from gpusched.core.model import (
    ENDED_STATES,
    MIB,
    Attempt,
    AttemptFact,
    Device,
    DeviceProcess,
    DeviceUse,
    Job,
    JobState,
    Outcome,
    OutcomeKind,
    Sample,
)
from gpusched.core.plan.availability import Availability, Criteria, DeviceState, OwnUse, fold, settle, vanish
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Claim, Close, Limits, Plan, Release, Snapshot, Start, Stop
from tests.support import build

TOTALS_MIB = (24_000, 24_000, 80_000)
UUIDS = tuple(f"GPU-{n}" for n in range(len(TOTALS_MIB)))
JOB_MIB = 8000
CRITERIA = Criteria(max_checks=2)
LIMITS = Limits(max_gpus=2, cpu_jobs=1)
UNKILLABLE = -1  # stands for the pid of a process that nothing ends


@dataclass
class Gpu:
    """What is true of a device, whoever knows it."""

    total_mib: int
    colleagues: dict[int, int] = field(default_factory=dict)  # pid -> MiB
    leftover_mib: int = 0  # of an attempt that has ended
    ghost: int = 0  # its pid, while it is still listed
    claimed_elsewhere: bool = False
    error: str | None = None
    missing: bool = False

    @property
    def clear(self) -> bool:
        return sum(self.colleagues.values()) < 500 and self.error is None and not self.missing


@dataclass
class Work:
    """A job as the queue holds it."""

    id: int
    gpus: int
    retries: int
    state: JobState
    tries: int = 0
    losses: int = 0
    not_before: float = 0.0
    attempts: int = 0
    avoid: frozenset[str] = frozenset()
    above_bytes: int = 0
    cancel_requested: bool = False

    def move(self, event: JobEvent) -> None:
        self.state = next_state(self.state, event, f"job {self.id}")

    @property
    def waiting(self) -> Job:
        return build.job(
            self.id,
            self.gpus,
            not_before=self.not_before,
            tries=self.tries,
            avoid=self.avoid,
            above_bytes=self.above_bytes,
        )


@dataclass
class Run:
    """An open attempt."""

    job: Work
    number: int
    devices: tuple[str, ...]
    uses: tuple[DeviceUse, ...]
    fact: AttemptFact = AttemptFact.ALIVE
    outcome: Outcome | None = None
    stop_sent: bool = False
    noticed: bool = False  # the dispatcher knows that it has ended

    @property
    def pid(self) -> int:
        return 1000 + 10 * self.job.id + self.number

    @property
    def ended(self) -> bool:
        return self.fact not in (AttemptFact.ALIVE, AttemptFact.LINGERING)

    @property
    def planned(self) -> Attempt:
        job = self.job
        return build.attempt(
            job.id,
            *self.devices,
            number=self.number,
            fact=self.fact,
            outcome=self.outcome,
            cancel_requested=job.cancel_requested,
            stop_sent=self.stop_sent,
            tries=job.tries,
            retries=job.retries,
            losses=job.losses,
        )


BAD_ENDS = st.sampled_from(
    [
        Outcome(OutcomeKind.EXITED, 1),
        Outcome(OutcomeKind.EXITED, 1, cause="gpu_oom"),
        Outcome(OutcomeKind.EXITED, 1, cause="gpu_busy"),
        Outcome(OutcomeKind.EXITED, 1, cause="gpu_lost"),
        Outcome(OutcomeKind.EXITED, 1, cause="host_oom"),
        Outcome(OutcomeKind.SIGNALLED, signal=9),
        Outcome(OutcomeKind.TIMED_OUT, signal=15),
        Outcome(OutcomeKind.TIMED_OUT, signal=9, cause="unkillable"),
        Outcome(OutcomeKind.INTERRUPTED, signal=15),
        Outcome(OutcomeKind.INTERRUPTED, signal=15, cause=TERMINATED),
        Outcome(OutcomeKind.LOST),
        Outcome(OutcomeKind.NOT_STARTED),
        Outcome(OutcomeKind.NOT_STARTED, cause="dispatcher_gone"),
        Outcome(OutcomeKind.NOT_STARTED, cause="bad_command"),
    ]
)
FACTS = {OutcomeKind.LOST: AttemptFact.LOST, OutcomeKind.NOT_STARTED: AttemptFact.NOT_STARTED}
DEVICES = st.sampled_from(UUIDS)


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.gpus = {uuid: Gpu(total) for uuid, total in zip(UUIDS, TOTALS_MIB, strict=True)}
        self.jobs: dict[int, Work] = {}
        self.runs: list[Run] = []
        self.next_pid = 1
        self.silent = False
        self.hidden = False  # processes cannot be listed
        self.draining = ""
        self.stop_all = False
        self.succeeded: dict[int, int] = {}
        self.begin()

    def begin(self) -> None:
        """A new dispatcher: it knows nothing yet and holds no claim."""
        self.known = {uuid: Availability(uuid) for uuid in UUIDS}
        self.held: dict[str, float] = {}  # claimed at
        self.asked: dict[str, float] = dict.fromkeys(UUIDS, 0.0)  # when the newest sample was asked for
        self.clear_polls = dict.fromkeys(UUIDS, 0)  # in a row, up to the newest sample
        self.refused: set[str] = set()
        self.error = ""
        self.draining, self.stop_all = "", False
        for run in self.runs:
            run.noticed = run.stop_sent = False

    # ---- the dispatcher's tick -------------------------------------------------------------------------

    def device(self, uuid: str) -> Device:
        return build.device(UUIDS.index(uuid), total_bytes=self.gpus[uuid].total_mib * MIB)

    def sample(self, uuid: str) -> Sample:
        gpu = self.gpus[uuid]
        if gpu.error or gpu.missing:
            return Sample(uuid, self.now, processes=None, error=gpu.error or "lost")
        alive = [run for run in self.runs if uuid in run.devices and run.fact is AttemptFact.ALIVE]
        listed = [DeviceProcess(pid, mib * MIB) for pid, mib in gpu.colleagues.items()]
        listed += [DeviceProcess(run.pid, JOB_MIB * MIB) for run in alive]
        if gpu.ghost > 0 and gpu.leftover_mib:
            listed.append(DeviceProcess(gpu.ghost, gpu.leftover_mib * MIB))
        used = 4 + sum(gpu.colleagues.values()) + JOB_MIB * len(alive) + gpu.leftover_mib
        total = gpu.total_mib * MIB
        return Sample(uuid, self.now, used * MIB, total, None if self.hidden else tuple(listed), 0.0)

    def read(self, uuid: str, *, polled: bool) -> None:
        runs = [run for run in self.runs if uuid in run.devices and not run.ended]
        ours = {run.pid for run in runs if run.fact is AttemptFact.ALIVE and not self.hidden}
        self.asked[uuid] = self.now
        self.clear_polls[uuid] = self.clear_polls[uuid] + polled if self.gpus[uuid].clear else 0
        if polled and self.gpus[uuid].missing:
            self.known[uuid] = vanish(self.known[uuid], self.now)
            return
        self.known[uuid] = fold(
            self.known[uuid],
            self.device(uuid),
            self.sample(uuid),
            OwnUse(ours, bool(runs)),
            polled=polled,
            criteria=CRITERIA,
        )

    def tick(self, *, polled: bool = False, looked: bool = False) -> Plan:
        """One turn of the loop: notice ends, read what is due, plan, act."""
        for run in self.runs:
            if run.ended and not run.noticed:
                run.noticed = True
                for uuid in run.devices if not self.error else ():
                    self.known[uuid] = settle(self.known[uuid], self.now)
        if self.silent and (polled or looked):
            self.error = "NVML is silent"
            self.known = {uuid: Availability(uuid, why=self.error, since=self.now) for uuid in UUIDS}
        elif polled:
            self.error = ""
            self.refused.clear()
            for uuid in UUIDS:
                self.read(uuid, polled=True)
        elif looked and not self.error:
            for uuid in UUIDS:
                unseen = uuid in self.held and self.asked[uuid] < self.held[uuid]
                if unseen or self.known[uuid].state is DeviceState.SETTLING:
                    self.read(uuid, polled=False)
        plan = make_plan(self.snapshot())
        self.check(plan)
        stuck = {u for r in self.runs if r.outcome and r.outcome.cause == "unkillable" for u in r.devices}
        for action in plan.actions:
            if isinstance(action, Close):
                self.close(action)
        for action in plan.actions:
            if isinstance(action, Start):
                self.start(action)
            elif isinstance(action, Stop):
                run = next(r for r in self.runs if r.job.id == action.attempt.job_id)
                run.stop_sent = True
            elif isinstance(action, Release):
                settling = self.known[action.uuid].state is DeviceState.SETTLING
                assert not settling or action.uuid in stuck or self.kept_by_an_unkillable(action.uuid)
                del self.held[action.uuid]
            elif isinstance(action, Claim):
                self.claim(action)
        return plan

    def snapshot(self) -> Snapshot:
        views = tuple(
            build.device_view(
                n,
                availability=self.known[uuid],
                total_gib=self.gpus[uuid].total_mib / 1024,
                held=uuid in self.held,
                looked=uuid in self.held and self.asked[uuid] >= self.held[uuid],
                refused="claimed elsewhere" if uuid in self.refused else "",
            )
            for n, uuid in enumerate(UUIDS)
        )
        queued = [job.waiting for job in self.jobs.values() if job.state is JobState.QUEUED]
        return Snapshot(
            self.now,
            LIMITS,
            views,
            () if self.draining else tuple(queued),
            tuple(run.planned for run in self.runs),
            self.draining,
            self.error,
            self.stop_all,
            CRITERIA.threshold_bytes,
        )

    def check(self, plan: Plan) -> None:
        snapshot = self.snapshot()
        assert make_plan(snapshot) == plan
        acted = [a.job_id for a in plan.actions if isinstance(a, (Start, Claim))]
        assert sorted([*acted, *plan.reasons]) == sorted(job.id for job in snapshot.waiting)
        chosen = [u for a in plan.actions if isinstance(a, (Start, Claim)) for u in a.devices]
        assert len(chosen) == len(set(chosen))

    def claim(self, action: Claim) -> None:
        assert not self.refused.intersection(action.devices)
        taken = [u for u in action.devices if self.gpus[u].claimed_elsewhere or self.claimed_by_a_shepherd(u)]
        if taken:
            self.refused.add(taken[0])
        else:
            self.held.update(dict.fromkeys(action.devices, self.now))
            self.now += 0.001

    def claimed_by_a_shepherd(self, uuid: str) -> bool:
        return self.kept_by_an_unkillable(uuid) or any(uuid in run.devices for run in self.runs)

    def kept_by_an_unkillable(self, uuid: str) -> bool:
        return self.gpus[uuid].leftover_mib > 0 and self.gpus[uuid].ghost == UNKILLABLE

    def start(self, action: Start) -> None:
        job = self.jobs[action.job_id]
        assert len(action.devices) == job.gpus
        assert job.not_before <= self.now
        for uuid in action.devices:
            assert uuid in self.held
            assert self.asked[uuid] >= self.held[uuid]  # looked at after it was claimed
            assert self.clear_polls[uuid] >= CRITERIA.max_checks  # nobody was on it then, nor at the polls before
            assert self.gpus[uuid].leftover_mib < 500
            assert not self.gpus[uuid].claimed_elsewhere
            assert not self.kept_by_an_unkillable(uuid)
        job.move(JobEvent.STARTED)
        job.attempts += 1
        uses = []
        for uuid in action.devices:
            free = self.gpus[uuid].total_mib * MIB - (self.known[uuid].foreign_bytes or 0)
            uses.append(DeviceUse(uuid, UUIDS.index(uuid), free_bytes=free))
            self.known[uuid] = replace(self.known[uuid], state=DeviceState.RUNNING, since=self.now)
        self.runs.append(Run(job, job.attempts, action.devices, tuple(uses)))

    def close(self, action: Close) -> None:
        run = next(r for r in self.runs if r.job.id == action.attempt.job_id)
        assert run.outcome is not None
        job, verdict = run.job, action.verdict
        self.judge_is_bounded(job, verdict)
        job.move(verdict.event)
        job.tries, job.losses = verdict.tries, verdict.losses
        job.not_before = self.now + verdict.delay_s if verdict.delay_s else 0.0
        job.avoid, job.above_bytes = steer(run.outcome, run.uses, job.avoid, job.above_bytes)
        job.cancel_requested = False
        self.runs.remove(run)
        if job.state is JobState.SUCCEEDED:
            self.succeeded[job.id] = self.succeeded.get(job.id, 0) + 1

    def judge_is_bounded(self, job: Work, verdict: Verdict) -> None:
        assert verdict.tries <= job.retries + 1
        assert verdict.losses <= LOSS_LIMIT + 1

    # ---- what happens ----------------------------------------------------------------------------------

    @initialize(gpus=st.lists(st.integers(0, 2), min_size=1, max_size=4))
    def some_jobs(self, gpus: list[int]) -> None:
        for n in gpus:
            self.submit(n, 0)

    @rule(gpus=st.integers(0, 2), retries=st.integers(0, 2))
    def submit(self, gpus: int, retries: int) -> None:
        if len(self.jobs) < 8:
            job_id = len(self.jobs) + 1
            self.jobs[job_id] = Work(job_id, gpus, retries, next_state(None, JobEvent.SUBMITTED))

    @rule()
    def poll(self) -> None:
        self.now += 2.0
        self.tick(polled=True)

    @rule(times=st.integers(1, 4), wake=st.booleans(), look=st.booleans())
    def polls(self, times: int, wake: bool, look: bool) -> None:
        if self.draining and not self.runs:
            self.begin()  # it has left; the same command again goes on
        for _ in range(times):
            self.poll()
        if wake:
            self.wake()
        if look:
            self.look(0.005)

    @rule(after=st.sampled_from([0.005, 0.05, 0.5]))
    def look(self, after: float) -> None:
        self.now += after
        self.tick(looked=True)

    @rule()
    def wake(self) -> None:
        """Something else than a reading wakes the loop."""
        self.now += 0.001
        self.tick()

    @rule()
    def wait_long(self) -> None:
        self.now += 61.0
        self.tick(polled=True)

    def draw_open(self, data: st.DataObject) -> Run:
        return data.draw(st.sampled_from([run for run in self.runs if not run.ended]))

    @precondition(lambda self: any(not run.ended for run in self.runs))
    @rule(data=st.data(), leftover_mib=st.sampled_from([0, 300, JOB_MIB]), ghost=st.booleans())
    def attempt_succeeds(self, data: st.DataObject, leftover_mib: int, ghost: bool) -> None:
        self.end(self.draw_open(data), Outcome(OutcomeKind.EXITED, 0), leftover_mib, ghost)

    @precondition(lambda self: any(not run.ended for run in self.runs))
    @rule(data=st.data(), outcome=BAD_ENDS, leftover_mib=st.sampled_from([0, 300, JOB_MIB]), ghost=st.booleans())
    def attempt_ends_otherwise(self, data: st.DataObject, outcome: Outcome, leftover_mib: int, ghost: bool) -> None:
        self.end(self.draw_open(data), outcome, leftover_mib, ghost)

    @precondition(lambda self: any(not run.ended for run in self.runs))
    @rule(data=st.data(), outcome=BAD_ENDS, times=st.integers(2, 6))
    def job_fails_again_and_again(self, data: st.DataObject, outcome: Outcome, times: int) -> None:
        job = self.draw_open(data).job
        for _ in range(times):
            for run in [run for run in self.runs if run.job is job and not run.ended]:
                self.end(run, outcome)
            self.wait_long()
            self.poll()
            self.look(0.005)

    def end(self, run: Run, outcome: Outcome, leftover_mib: int = 0, ghost: bool = False) -> None:
        if run.stop_sent and not outcome.ok:
            kind = OutcomeKind.CANCELLED if run.job.cancel_requested else OutcomeKind.INTERRUPTED
            outcome = Outcome(kind, signal=15)
        run.fact, run.outcome = FACTS.get(outcome.kind, AttemptFact.EXITED), outcome
        if outcome.kind is OutcomeKind.NOT_STARTED:
            leftover_mib = 0
        if outcome.cause == "unkillable":
            leftover_mib, ghost = 300, False  # little, but its shepherd keeps the claim
        for uuid in run.devices:
            self.gpus[uuid].leftover_mib = leftover_mib
            self.gpus[uuid].ghost = UNKILLABLE if outcome.cause == "unkillable" else run.pid if ghost else 0

    @precondition(lambda self: any(run.fact is AttemptFact.ALIVE for run in self.runs))
    @rule(data=st.data())
    def shepherd_is_killed(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from([run for run in self.runs if run.fact is AttemptFact.ALIVE]))
        run.fact = AttemptFact.LINGERING
        for uuid in run.devices:
            self.gpus[uuid].leftover_mib = JOB_MIB

    @precondition(lambda self: any(gpu.leftover_mib for gpu in self.gpus.values()))
    @rule(uuid=DEVICES)
    def memory_comes_back(self, uuid: str) -> None:
        if not any(uuid in run.devices and not run.ended for run in self.runs):
            self.gpus[uuid].leftover_mib = self.gpus[uuid].ghost = 0

    @rule(uuid=DEVICES, mib=st.sampled_from([100, 600, 9000]))
    def colleague_comes(self, uuid: str, mib: int) -> None:
        self.gpus[uuid].colleagues[self.next_pid] = mib
        self.next_pid += 1

    @precondition(lambda self: any(gpu.colleagues for gpu in self.gpus.values()))
    @rule(uuid=DEVICES)
    def colleagues_go(self, uuid: str) -> None:
        self.gpus[uuid].colleagues.clear()

    @rule(uuid=DEVICES)
    def another_queue_claims(self, uuid: str) -> None:
        if uuid not in self.held and not self.claimed_by_a_shepherd(uuid):
            self.gpus[uuid].claimed_elsewhere = True

    @precondition(lambda self: any(gpu.claimed_elsewhere for gpu in self.gpus.values()))
    @rule(uuid=DEVICES)
    def another_queue_lets_go(self, uuid: str) -> None:
        self.gpus[uuid].claimed_elsewhere = False

    @rule(uuid=DEVICES, error=st.sampled_from([None, None, "lost", "Unknown Error"]), missing=st.booleans())
    def device_trouble(self, uuid: str, error: str | None, missing: bool) -> None:
        self.gpus[uuid].error, self.gpus[uuid].missing = error, missing and error == "lost"

    @rule(silent=st.sampled_from([True, False, False]))
    def nvml(self, silent: bool) -> None:
        self.silent = silent

    @rule(hidden=st.booleans())
    def process_lists(self, hidden: bool) -> None:
        self.hidden = hidden

    @rule()
    def drain(self) -> None:
        self.draining = "stopping (Ctrl-C)"

    @rule()
    def stop_now(self) -> None:
        self.draining, self.stop_all = "stopping (TERM)", True

    @rule()
    def dispatcher_is_killed_and_started_again(self) -> None:
        self.begin()

    @rule(
        data=st.data(), event=st.sampled_from([JobEvent.CANCELLED, JobEvent.REQUEUED, JobEvent.HELD, JobEvent.RELEASED])
    )
    def person_asks(self, data: st.DataObject, event: JobEvent) -> None:
        if not self.jobs:
            return
        job = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
        if event is JobEvent.CANCELLED and job.state is JobState.RUNNING:
            job.cancel_requested = True
            return
        before = replace(job)
        try:
            job.move(event)
        except InvalidTransition:
            assert job == before
            return
        if event is JobEvent.REQUEUED:
            job.tries = job.losses = job.above_bytes = 0
            job.not_before, job.avoid = 0.0, frozenset()

    # ---- what always holds -----------------------------------------------------------------------------

    @invariant()
    def a_device_never_has_two_attempts(self) -> None:
        used = [uuid for run in self.runs for uuid in run.devices if not run.ended]
        assert len(used) == len(set(used))
        assert len(used) <= LIMITS.max_gpus
        assert sum(not run.devices and not run.ended for run in self.runs) <= LIMITS.cpu_jobs

    @invariant()
    def running_means_exactly_one_open_attempt(self) -> None:
        open_jobs = [run.job.id for run in self.runs]
        assert sorted(open_jobs) == [job.id for job in self.jobs.values() if job.state is JobState.RUNNING]

    @invariant()
    def the_queue_holds_no_more_than_it_may(self) -> None:
        used = {uuid for run in self.runs for uuid in run.devices if not run.ended}
        assert len(self.held.keys() | used) <= LIMITS.max_gpus

    @invariant()
    def no_job_succeeds_twice(self) -> None:
        assert all(n == 1 for n in self.succeeded.values())

    # ---- and in the end --------------------------------------------------------------------------------

    def teardown(self) -> None:
        """In a friendly world every job that waits or runs comes to its end."""
        self.draining, self.stop_all, self.silent, self.hidden = "", False, False, False
        for uuid in UUIDS:
            gpu = self.gpus[uuid]
            self.gpus[uuid] = Gpu(gpu.total_mib, leftover_mib=gpu.leftover_mib, ghost=gpu.ghost)
        for job in self.jobs.values():
            if job.state is JobState.HELD:
                job.move(JobEvent.RELEASED)
        for turn in range(120):
            for run in [run for run in self.runs if not run.ended]:
                self.end(run, Outcome(OutcomeKind.EXITED, 0), JOB_MIB if turn % 2 else 0, turn % 3 == 0)
            self.look(0.005)
            for uuid in UUIDS:
                self.memory_comes_back(uuid)
            self.look(0.02)
            self.poll()
            if all(job.state in ENDED_STATES for job in self.jobs.values()):
                break
        unfinished = {job.id: job.state for job in self.jobs.values() if job.state not in ENDED_STATES}
        assert not unfinished, (unfinished, self.tick().reasons, self.known)
        self.look(0.005)
        self.poll()
        assert not self.runs
        assert not self.held


World.TestCase.settings = settings(deadline=None, max_examples=250, stateful_step_count=40)
TestWorld = pytest.mark.slow(World.TestCase)
