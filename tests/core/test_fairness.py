"""Fair turns among users: the rule by itself, and in a box of dispatchers with simulated clocks, friendly or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpusched.core.plan import fairness
from gpusched.core.plan.availability import Availability, DeviceState
from gpusched.core.plan.fairness import ALONE, UNHEEDED_S, Rival, Sharing, Ticket, Turns, Want, Yield
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Claim, Gather, Limits, Plan, Release, Snapshot, Start
from tests.support import build

GPU = ("GPU-0",)


def ticket(uid: int, since_at: float = 0.0, gpus: int = 1, devices: Sequence[str] = GPU, check_s: float = 20) -> Ticket:
    return Ticket(uid, f"user{uid}", since_at, Want(1, gpus, tuple(devices)), check_s=check_s)


# ---- the rule --------------------------------------------------------------------------------------


def test_who_holds_fewer_comes_first_and_then_who_waits_longer() -> None:
    def is_left(held: int, since_at: float, holds: int, own_since_at: float | None) -> bool:
        turns = Turns(Sharing((Rival(2, "bo", since_at, GPU, held),), since_at=own_since_at))
        turns.leave(GPU, holds)
        return bool(turns.left_to)

    assert is_left(0, 5, 1, None) and is_left(0, 5, 1, 1)
    assert is_left(1, 5, 1, 9) and is_left(1, 5, 1, None)
    assert not is_left(1, 5, 1, 1)
    assert not is_left(2, 5, 1, None)


def test_each_user_is_left_one_device_that_is_of_use() -> None:
    turns = Turns(Sharing((Rival(2, "bo", 1, ("GPU-1", "GPU-2")), Rival(3, "cy", 2, ("GPU-2", "GPU-1")))))
    turns.leave(["GPU-0", "GPU-1", "GPU-2", "GPU-3"], 1)
    turns.leave(["GPU-3"], 4)
    assert {uuid: rival.uid for uuid, rival in turns.left_to.items()} == {"GPU-1": 2, "GPU-2": 3}


def test_a_device_stays_left_although_another_falls_free() -> None:
    turns = Turns(Sharing((Rival(2, "bo", 1, ("GPU-1", "GPU-2"), left="GPU-2"),)))
    turns.leave(["GPU-1", "GPU-2"], 1)
    assert list(turns.left_to) == ["GPU-2"]


def test_limits_follow_the_check_time_of_the_ticket() -> None:
    limits = [ticket(2, check_s=check_s).limit_s(None) for check_s in (-5, 0, 60, 900, 1e300)]
    assert limits == [120, 120, 180, 2700, 3600]
    assert ticket(2, check_s=1e300).limit_s(7) == 7


def note(yields: dict[int, Yield], device: str, now_s: float, *, free: Sequence[str] = GPU, held: int = 0) -> None:
    """Note a plan that leaves `device` to user 2."""
    left = {device: Rival(2, "bo", 0, GPU, limit_s=100)} if device else {}
    after = fairness.note_yields(yields, left, set(free), {2: held}, now_s)
    yields.clear()
    yields.update(after)


def is_heeded(yields: dict[int, Yield], now_s: float) -> bool:
    return bool(fairness.heeded([ticket(2, since_at=now_s)], yields, now_s))


def test_who_lets_a_free_device_pass_is_not_heeded_for_an_hour_whatever_new_tickets_say() -> None:
    yields: dict[int, Yield] = {}
    for now_s in (0, 50, 99):
        note(yields, "GPU-0", now_s)
        assert is_heeded(yields, now_s)
    note(yields, "GPU-0", 100)
    assert not is_heeded(yields, 101) and not is_heeded(yields, 100 + UNHEEDED_S - 1)
    assert is_heeded(yields, 100 + UNHEEDED_S)


def test_time_counts_on_over_tickets_that_come_and_go() -> None:
    yields: dict[int, Yield] = {}
    for start_s in (0, 1000):
        note(yields, "GPU-0", start_s)
        note(yields, "", start_s + 60)
    note(yields, "GPU-0", 2000)
    note(yields, "GPU-0", 2000)
    assert not is_heeded(yields, 2001)


def test_time_ends_when_the_user_takes_a_device_or_a_stranger_is_on_it() -> None:
    for free, held in (((), 1), ((), 0), (GPU, 1)):
        yields: dict[int, Yield] = {}
        note(yields, "GPU-0", 0)
        note(yields, "", 90, free=free, held=held)
        note(yields, "GPU-0", 100, held=held)
        note(yields, "GPU-0", 150, held=held)
        assert is_heeded(yields, 151)


def test_only_the_oldest_of_the_tickets_for_several_may_gather_and_is_left_a_device() -> None:
    tickets = [ticket(2, 5, gpus=2, devices=("a", "b")), ticket(3, 4, gpus=2, devices=("a", "b")), ticket(4, 9)]
    gathers = fairness.gatherer(tickets, tickets, {})
    assert gathers is not None and gathers.uid == 3
    assert {r.uid: r.held for r in fairness.rivals(tickets, gathers, {3: 3, 4: 1}, {3: 9}, {}, None)} == {3: 2, 4: 1}


def test_who_is_not_heeded_still_gathers_alone_while_some_are_kept() -> None:
    """Else two might keep a part each, and wait for the rest."""
    tickets = [ticket(2, 5, gpus=2, devices=("a", "b")), ticket(3, 4, gpus=2, devices=("a", "b"))]
    assert fairness.gatherer(tickets, tickets[:1], {}) is tickets[0]
    assert fairness.gatherer(tickets, tickets[:1], {3: 1}) is tickets[1]


# ---- plans -----------------------------------------------------------------------------------------

BO = Rival(2, "bo\x1b", 1.0, ("GPU-0", "GPU-1"))


def plan(*devices: object, gpus: int = 1, mem_gib: float = 0, sharing: Sharing = ALONE, **more: object) -> Plan:
    limits = replace(Limits(), **{name: more.pop(name) for name in list(more) if name in Limits.__slots__})  # type: ignore[arg-type]
    waiting = (build.job(1, gpus, mem_gib=mem_gib),)
    return make_plan(Snapshot(100.0, limits, devices, waiting, sharing=sharing, **more))  # type: ignore[arg-type]


def test_a_device_that_falls_free_is_left_and_let_go_with_a_reason() -> None:
    found = plan(build.device_view(0, held=True), sharing=Sharing((BO,)))
    assert found.actions == (Release("GPU-0"),) and found.left_to == {"GPU-0": BO}
    assert found.want == Want(1, 1, GPU)
    assert found.reasons[1].text == (
        "waits for a GPU; GPU 0 is left to bo\\x1b, who waits for a GPU and comes before you "
        "(fewer GPUs, or a longer wait)"
    )


def test_what_others_of_the_own_user_hold_counts() -> None:
    bo = replace(BO, held=1)
    for own_devices, is_left in (((), False), (("GPU-7",), True)):
        sharing = Sharing((bo,), own_devices=own_devices, since_at=0.0)
        assert bool(plan(build.device_view(0, held=True), sharing=replace(sharing, since_at=2.0)).left_to) == is_left


def test_no_job_joins_a_shared_device_until_it_is_empty() -> None:
    device = build.device_view(
        0,
        availability=Availability("GPU-0", 1, DeviceState.RUNNING, foreign_bytes=0),
        held=True,
        residents=(build.resident(9, 2),),
    )
    attempts = (build.attempt(9, 0, mem_gib=2),)
    assert plan(device, mem_gib=2, attempts=attempts).actions != ()
    found = plan(device, mem_gib=2, attempts=attempts, sharing=Sharing((BO,)))
    assert found.actions == () and "GPU 0 is left to bo" in found.reasons[1].text


def test_a_job_wants_what_could_serve_it_and_what_others_can_leave() -> None:
    views = [
        build.device_view(0, DeviceState.BUSY, refused="claimed by bo's gpusched for q"),
        build.device_view(1, DeviceState.BUSY),
        build.device_view(2, DeviceState.LOST),
        build.device_view(3, DeviceState.CHECKING),
    ]
    assert plan(*views, gpus=2).want == Want(1, 2, ("GPU-0", "GPU-3"))
    assert plan(*views, gpus=3).want is None
    assert plan(*views, max_gpus=1, gpus=2).want is None
    assert "GPU 0: claimed by bo's gpusched for q, GPU 1: busy" in plan(*views).reasons[1].text


def test_free_devices_are_gathered_for_a_job_that_needs_several() -> None:
    views = [build.device_view(0, held=True), build.device_view(1), build.device_view(2, DeviceState.CHECKING)]
    assert plan(*views, gpus=3).actions == (Release("GPU-0"),)
    found = plan(*views, gpus=3, sharing=Sharing(gathers=True))
    assert found.actions == (Gather(("GPU-1",)),) and found.gathered == ("GPU-0", "GPU-1")


def test_a_user_has_a_limit_over_all_queues() -> None:
    views = [build.device_view(0), build.device_view(1)]
    found = plan(*views, user_gpus=2, sharing=Sharing(own_devices=("GPU-8", "GPU-9")))
    assert found.actions == ()
    assert found.reasons[1].text == (
        "you have 2 of the 2 GPUs that you may hold in all queues, `exec` and `reserve` together (max_gpus_per_user)"
    )
    assert plan(*views, user_gpus=3, sharing=Sharing(own_devices=("GPU-8", "GPU-9"))).actions == (Claim(1, GPU),)


# ---- a box ----------------------------------------------------------------------------------------


@dataclass
class Work:
    gpus: int
    lasts_s: float


@dataclass
class Queue:
    """A dispatcher of a user. One without `takes` holds a ticket for ever, says `check_s`, and takes nothing."""

    uid: int
    jobs: list[Work]
    checks: int = 1
    poll_s: float = 1.0
    arrives_s: float = 0.0
    takes: bool = True
    check_s: float = 1e9
    counts: dict[str, int] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    looked: set[str] = field(default_factory=set)
    running: dict[int, tuple[float, tuple[str, ...]]] = field(default_factory=dict)  # job -> its end, its devices
    refused: set[str] = field(default_factory=set)
    gathered: set[str] = field(default_factory=set)
    sharing: Sharing = ALONE
    ticket: Ticket | None = None
    want: Want | None = None
    yields: dict[int, Yield] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    max_gpus: int = 8
    turn_at: float = 0.0
    started: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)
    used_s: float = 0.0
    left: set[str] = field(default_factory=set)

    @property
    def is_done(self) -> bool:
        return not (self.waiting or self.running)

    def __post_init__(self) -> None:
        self.waiting = set(range(len(self.jobs)))


class GpuBox:
    """GPUs that only dispatchers use; each user has one. A job's memory comes and goes with it."""

    def __init__(self, gpus: int, *queues: Queue) -> None:
        self.uuids = tuple(f"GPU-{n}" for n in range(gpus))
        self.queues = queues
        self.now = 0.0
        self.most_idle = 0  # devices that were free for all and yet left, beyond one of each queue and ticket

    def holder(self, uuid: str, *, but: Queue) -> Queue | None:
        return next((q for q in self.queues if q is not but and uuid in q.held), None)

    def run(self, until_s: float, step_s: float = 1.0) -> None:
        while self.now < until_s and not all(q.is_done for q in self.queues if q.takes):
            for queue in self.queues:
                if queue.arrives_s <= self.now:
                    self.tick(queue)
            self.now = round(self.now + step_s, 3)

    def tick(self, queue: Queue) -> None:
        ended = [job for job, (end, _) in queue.running.items() if end <= self.now]
        for job in ended:
            del queue.running[job]
        if ended:
            queue.turn_at = self.now
        polled = (self.now - queue.arrives_s) % queue.poll_s < 1e-6
        if not queue.takes:
            if polled:
                queue.ticket = queue.ticket or ticket(queue.uid, self.now, devices=self.uuids, check_s=queue.check_s)
            return
        if polled:
            self.count(queue)
        if polled or ended:
            self.renew(queue)
            self.look(queue)
        while self.plan(queue):
            pass

    def count(self, queue: Queue) -> None:
        queue.refused.clear()
        on = {uuid for other in self.queues if other is not queue for _, d in other.running.values() for uuid in d}
        for uuid in self.uuids:
            queue.counts[uuid] = 0 if uuid in on else min(queue.counts.get(uuid, 0) + 1, queue.checks)

    def renew(self, queue: Queue) -> None:
        want, before = queue.want, queue.ticket
        if want is None:
            queue.ticket = None
            return
        is_same = before is not None and before.want.job_id == want.job_id
        since_at = before.since_at if before is not None and is_same else self.now + queue.uid / 1000
        check_s = queue.checks * queue.poll_s
        queue.ticket = Ticket(queue.uid, str(queue.uid), since_at, want, turn_at=queue.turn_at, check_s=check_s)

    def look(self, queue: Queue) -> None:
        tickets = [q.ticket for q in self.queues if q.ticket is not None]
        heeded = fairness.heeded(tickets, queue.yields, self.now)
        held = {q.uid: len(q.held) for q in self.queues}
        gathered = {q.uid: len(q.gathered) for q in self.queues}
        gathers = fairness.gatherer(tickets, heeded, gathered)
        rivals = fairness.rivals(heeded, gathers, held, gathered, queue.yields, None)
        queue.sharing = Sharing(
            tuple(rival for rival in rivals if rival.uid != queue.uid),
            since_at=None if queue.ticket is None else max(queue.ticket.since_at, queue.turn_at),
            gathers=gathers is not None and gathers is queue.ticket,
        )

    def plan(self, queue: Queue) -> bool:
        """Make a plan and do it; return True if it is worth to plan again at once."""
        running = {uuid for _, devices in queue.running.values() for uuid in devices}
        views = []
        for n, uuid in enumerate(self.uuids):
            state = DeviceState.CHECKING if queue.counts.get(uuid, 0) < queue.checks else DeviceState.FREE
            other = self.holder(uuid, but=queue)
            is_busy = other is not None and any(uuid in devices for _, devices in other.running.values())
            state = DeviceState.RUNNING if uuid in running else DeviceState.BUSY if is_busy else state
            is_held, refused = uuid in queue.held, "refused" if other is not None or uuid in queue.refused else ""
            view = build.device_view(n, state, held=is_held, looked=uuid in queue.looked, refused=refused)
            views.append(view)
        waiting = [build.job(n + 1, queue.jobs[n].gpus) for n in sorted(queue.waiting)[:8]]
        attempts = [build.attempt(n, *devices) for n, (_, devices) in queue.running.items()]
        limits = Limits(max_gpus=queue.max_gpus)
        snapshot = Snapshot(self.now, limits, tuple(views), tuple(waiting), tuple(attempts), sharing=queue.sharing)
        found = make_plan(snapshot)
        free = {view.uuid for view in views if view.availability.state is DeviceState.FREE and not view.refused}
        held = {q.uid: len(q.held) for q in self.queues}
        queue.yields = fairness.note_yields(queue.yields, found.left_to, free, held, self.now)
        self.check(queue, found, free)
        queue.want, queue.gathered = found.want, set(found.gathered)
        for action in found.actions:
            self.do(queue, action)
        return any(isinstance(action, Claim | Gather | Start) for action in found.actions)

    def do(self, queue: Queue, action: object) -> None:
        if isinstance(action, Release):
            queue.held.discard(action.uuid)
            queue.looked.discard(action.uuid)
        elif isinstance(action, Claim | Gather):
            uuids = set(action.devices)
            taken = {uuid for uuid in uuids if self.holder(uuid, but=queue)}
            queue.refused |= taken
            if not taken:
                queue.held |= uuids
                queue.looked |= uuids
        elif isinstance(action, Start):
            work = queue.jobs[action.job_id - 1]
            assert len(action.devices) == work.gpus
            queue.waiting.remove(action.job_id - 1)
            queue.running[action.job_id] = self.now + work.lasts_s, action.devices
            queue.started.append((self.now, action.devices))
            queue.used_s += work.lasts_s * work.gpus
            queue.sharing = replace(queue.sharing, since_at=None)

    def check(self, queue: Queue, found: Plan, free: set[str]) -> None:
        """At most one device is left to each ticket, and one queue at a time gathers."""
        users = [rival.uid for rival in found.left_to.values()]
        assert len(users) == len(set(users)) and set(found.left_to) <= free
        assert queue.uid not in users
        assert found.gathered == () or found.want is not None


def work(n: int, lasts_s: float, gpus: int = 1) -> list[Work]:
    return [Work(gpus, lasts_s) for _ in range(n)]


def test_the_single_job_of_a_newcomer_starts_after_the_next_end_and_its_checks() -> None:
    many, one = Queue(1, work(24, 100)), Queue(2, work(1, 10), checks=10, poll_s=2, arrives_s=150)
    GpuBox(1, many, one).run(5000)
    ((started_s, _),) = one.started
    assert 200 + 18 <= started_s <= 200 + 10 * 2 + 2
    assert many.is_done and many.started[2][0] <= started_s + 10 + 2


def test_three_users_get_the_same_time_while_all_wait() -> None:
    queues = [Queue(uid, work(60, 3), arrives_s=0.25 * uid, poll_s=0.5, max_gpus=4) for uid in (1, 2, 3)]
    box = GpuBox(8, *queues)
    while all(q.waiting for q in queues):
        box.run(box.now + 0.25, 0.25)
    used = [q.used_s for q in queues]
    assert max(used) <= 1.1 * min(used), used
    assert box.now <= 180 * 3 / 8 * 1.35, box.now  # what it costs


def test_four_gpus_are_gathered_among_single_ones() -> None:
    singles, four = Queue(1, work(100, 60)), Queue(2, work(3, 60, gpus=4), arrives_s=30, checks=3)
    other = Queue(3, work(100, 45), arrives_s=5)
    GpuBox(8, singles, four, other).run(4000)
    first, _, third = (started_s for started_s, _ in four.started)
    assert first <= 30 + 4 * 60 and third <= first + 2 * 60 + 2 * 4 * 60
    assert singles.is_done and other.is_done


def test_two_who_gather_never_wait_for_each_other() -> None:
    queues = [Queue(uid, work(4, 50, gpus=3), arrives_s=uid) for uid in (1, 2)]
    box = GpuBox(4, Queue(3, work(40, 20)), *queues)
    box.run(6000)
    assert all(q.is_done for q in box.queues), box.now


def test_one_who_checks_for_a_quarter_of_an_hour_still_gets_a_turn() -> None:
    many, slow = Queue(1, work(300, 60), poll_s=2), Queue(2, work(2, 60), checks=90, poll_s=10, arrives_s=30)
    GpuBox(1, many, slow).run(30_000, 2.0)
    assert slow.started[0][0] <= 60 + 90 * 10 + 10
    assert slow.is_done


def test_a_hostile_ticket_costs_its_limit_once_an_hour() -> None:
    hostile, one = Queue(6, [], takes=False), Queue(1, work(60, 60))
    box = GpuBox(1, hostile, one)
    box.run(20_000)
    hours = box.now / 3600
    assert one.is_done and 60 * 60 + 3000 <= box.now <= 60 * 60 + 3600 * (hours / 2 + 1)


@st.composite
def boxes(draw: st.DrawFn) -> GpuBox:
    gpus = draw(st.integers(1, 4))
    queues = []
    for uid in range(1, draw(st.integers(2, 4)) + 1):
        jobs = draw(
            st.lists(st.builds(Work, st.integers(1, gpus), st.sampled_from([1.0, 7.0, 30.0])), min_size=1, max_size=8)
        )
        checks, poll_s = draw(st.sampled_from([(1, 1.0), (3, 2.0), (10, 2.0)]))
        queues.append(Queue(uid, jobs, checks, poll_s, arrives_s=draw(st.sampled_from([0.0, 0.0, 3.0, 20.0]))))
    if draw(st.booleans()):
        queues.append(Queue(9, [], takes=False, check_s=1.0, arrives_s=draw(st.sampled_from([0.0, 10.0]))))
    return GpuBox(gpus, *queues)


@given(boxes())
@settings(max_examples=40, deadline=None, phases=[Phase.generate])
def test_nobody_starves_and_nobody_waits_for_each_other(box: GpuBox) -> None:
    """All jobs end in the time that they take one after the other, with their checks.

    Somebody hostile costs each user the limit, once an hour.
    """
    spent_s = 20 + 2 * sum(w.lasts_s + q.checks * q.poll_s * (w.gpus + 1) for q in box.queues for w in q.jobs)
    hostile_s = 0.0 if all(q.takes for q in box.queues) else 2 * fairness.LEAST_YIELD_S * len(box.queues)
    box.run(spent_s + hostile_s * (2 + spent_s // 3600))
    assert all(q.is_done for q in box.queues if q.takes), [(q.uid, q.waiting, q.ticket) for q in box.queues]
