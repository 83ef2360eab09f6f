"""The scheduler with shared devices, priorities and dependencies: what holds for any queue on any box."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpusched.core.jobs.job import BUDGET_STEP_BYTES, round_budget
from gpusched.core.jobs.lifecycle import JobEvent, judge
from gpusched.core.model import (
    ENDED_STATES,
    MIB,
    Attempt,
    AttemptFact,
    Attributes,
    Dependency,
    DependencyKind,
    JobRow,
    JobSpec,
    JobState,
    Outcome,
    OutcomeKind,
    Requirements,
)
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.planner import grown_budget, make_plan
from gpusched.core.plan.snapshot import (
    MARGIN_BYTES,
    Action,
    Claim,
    Close,
    DeviceView,
    Limits,
    Look,
    Release,
    Snapshot,
    Start,
)
from gpusched.dispatcher.jobs.queue_head import QueueHead
from gpusched.host.store import Store, attempt_table, job_table, meta_table, startable_jobs, submission, transitions
from gpusched.host.store.attempt_table import AttemptEnd
from gpusched.lists.dependencies import check
from tests.core.test_placement import CHECKS, NOW, Box, card, plan
from tests.support import build
from tests.support.build import GIB

OOM = Outcome(OutcomeKind.EXITED, 1, cause="gpu_oom")
STRATEGIES = st.sampled_from(["fill-first", "round-robin", "memory-aware"])


# ---- an out-of-memory ------------------------------------------------------------------------------


def ended(mem_gib: float, *, outcome: Outcome = OOM, retries: int = 1, gpus: int = 1, **more: Any) -> Attempt:
    return build.attempt(
        9, *range(gpus), mem_gib=mem_gib, fact=AttemptFact.EXITED, outcome=outcome, retries=retries, **more
    )


def closed(attempt: Attempt, *cards: DeviceView) -> Close:
    snapshot = Snapshot(NOW, Limits(), cards, attempts=(attempt,))
    (close,) = [action for action in make_plan(snapshot).actions if isinstance(action, Close)]
    return close


@pytest.mark.parametrize(
    ("stated", "peak", "budget"),
    [(10, None, 12.5), (10, 4, 12.5), (10, 16, 20), (10, 0, 12.5), (1.1, None, 1.5)],
)
def test_a_budget_grows_to_a_quarter_more_than_stated_or_seen(stated: float, peak: float | None, budget: float) -> None:
    seen = None if peak is None else round(peak * GIB)
    found = closed(ended(stated, peak_device_bytes=seen), card(0))
    assert (found.verdict.event, found.mem_bytes) == (JobEvent.RETRIED, budget * GIB)


def test_what_no_card_could_ever_have_is_not_tried() -> None:
    found = closed(ended(20), card(0), card(1))
    assert (found.verdict.event, found.verdict.delay_s, found.mem_bytes) == (JobEvent.FAILED, 0, 0)
    assert found.verdict.note == "would need 25600 MiB after an out-of-memory, and too few allowed GPUs have that much"
    assert closed(ended(20), card(0), card(1, total_gib=80)).verdict.event is JobEvent.RETRIED


def test_only_cards_of_the_model_and_as_many_as_it_needs_count() -> None:
    a100 = card(1, total_gib=80, name="NVIDIA A100")
    assert closed(ended(20, gpu_model="l4"), card(0), a100).verdict.event is JobEvent.FAILED
    assert closed(ended(20, gpu_model="a100"), card(0), a100).verdict.event is JobEvent.RETRIED
    found = closed(ended(20, gpus=2), card(0), a100)
    assert found.verdict.event is JobEvent.FAILED and "too few allowed GPUs have" in found.verdict.note


def test_what_the_driver_keeps_of_a_board_is_not_to_be_had() -> None:
    kept = replace(card(0, total_gib=80), reserved_bytes=904 * MIB)
    assert closed(ended(62.8), kept).verdict.event is JobEvent.RETRIED  # 78.5 GiB
    assert closed(ended(63), kept).verdict.event is JobEvent.FAILED  # 78.75 GiB
    assert plan([kept], [build.job(1, mem_gib=78.5)]).actions == (Claim(1, ("GPU-0",)),)
    found = plan([kept], [build.job(1, mem_gib=79)])
    assert found.reasons[1].text.endswith("wants 80896 MiB on a GPU, and a GPU here can give 80504 at most")


def test_without_a_retry_the_budget_grows_for_whoever_queues_it_again() -> None:
    assert closed(ended(10, retries=0), card(0)) == Close(
        ended(10, retries=0), judge(OOM, build.job(), cancel_asked=False), round(12.5 * GIB)
    )
    assert closed(ended(20, retries=0), card(0)).mem_bytes == 0  # but never beyond what can start
    assert closed(ended(10, outcome=Outcome(OutcomeKind.EXITED, 1)), card(0)).mem_bytes == 0
    assert closed(ended(0), card(0)).mem_bytes == 0


@given(st.integers(1, 100 << 30), st.none() | st.integers(0, 100 << 30))
def test_budgets_are_steps_and_only_grow(budget: int, peak: int | None) -> None:
    rounded, grown = round_budget(budget), grown_budget(budget, peak)
    assert 0 <= rounded - budget < BUDGET_STEP_BYTES
    assert rounded % BUDGET_STEP_BYTES == grown % BUDGET_STEP_BYTES == 0
    assert grown >= 1.25 * max(budget, peak or 0) - 1


# ---- any queue on any box --------------------------------------------------------------------------


@st.composite
def cards(draw: st.DrawFn) -> list[DeviceView]:
    """Free, busy, shared, adopted, settling and lost ones, of two models; some with more in use than was stated."""
    found = []
    for n in range(draw(st.integers(0, 5))):
        total = draw(st.sampled_from([24, 24, 40, 80]))
        budgets = draw(st.lists(st.sampled_from([1.0, 2.0, 5.5, 11.0]), max_size=3))
        alone = draw(st.integers(0, 7)) == 0
        state = draw(st.sampled_from([None, None, None, DeviceState.BUSY, DeviceState.LOST]))
        found.append(
            card(
                n,
                *([0.0] if alone else budgets),
                total_gib=total,
                foreign_mib=draw(st.sampled_from([0, 4, 400, 9000, None])),
                state=None if budgets or alone else state,
                held=draw(st.booleans()) if not (budgets or alone) else draw(st.integers(0, 4)) > 0,
                count=draw(st.sampled_from([CHECKS, CHECKS, CHECKS - 1])),
                read_s_ago=draw(st.sampled_from([0.0, 0.0, 3.0])),
                settling_since=draw(st.sampled_from([None, None, NOW - 1])),
                used_gib=[b * draw(st.sampled_from([0.5, 1, 1.5])) for b in budgets] if not alone else (),
                name="NVIDIA A100" if total == 80 else "NVIDIA L4",
                group=draw(st.sampled_from(["", "a", "b"])),
                reserved_bytes=draw(st.sampled_from([0, 600 * MIB])),
            )
        )
    return found


JOBS = st.lists(
    st.builds(
        build.job,
        gpus=st.sampled_from([0, 1, 1, 1, 1, 2, 3]),
        not_before=st.sampled_from([0.0, 0.0, 0.0, NOW + 5]),
        mem_bytes=st.sampled_from([0, 0, GIB, 2 * GIB, 5 * GIB, 11 * GIB, 30 * GIB]),
        gpu_model=st.sampled_from(["", "", "", "a100"]),
        tags=st.sampled_from([(), (), ("t",), ("u",), ("t", "u")]),
        above_bytes=st.sampled_from([0, 0, 0, 30 * GIB]),
        avoid=st.frozensets(st.sampled_from(["GPU-0", "GPU-1"]), max_size=1),
    ),
    max_size=16,
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    devices = draw(cards())
    on: dict[int, list[DeviceView]] = defaultdict(list)
    for device in devices:
        for resident in device.residents:
            on[resident.job_id].append(device)
    attempts = [
        build.attempt(job, *(d.uuid for d in found), tags=draw(st.sampled_from([(), ("t",)])))
        for job, found in on.items()
    ]
    waiting = [replace(job, id=n, mem_bytes=job.mem_bytes if job.gpus else 0) for n, job in enumerate(draw(JOBS), 1)]
    limits = Limits(
        draw(st.integers(1, 6)),
        draw(st.integers(1, 2)),
        draw(st.integers(1, 4)),
        draw(st.dictionaries(st.sampled_from("tu"), st.integers(1, 3))),
        draw(STRATEGIES),
    )
    waited = {job.id: NOW - draw(st.sampled_from([0, 599, 600, 9000])) for job in waiting if draw(st.booleans())}
    return Snapshot(
        NOW, limits, tuple(devices), tuple(waiting), tuple(attempts), max_checks=CHECKS, waited_since=waited
    )


def of(kind: type, actions: Iterable[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(snapshots())
def test_no_device_gets_more_than_it_has(snapshot: Snapshot) -> None:
    found = make_plan(snapshot)
    jobs = {job.id: job for job in snapshot.waiting}
    views = {device.uuid: device for device in snapshot.devices}
    given_to: dict[str, list[JobRow]] = defaultdict(list)
    for action in found.actions:
        if isinstance(action, Start | Claim):
            for uuid in action.devices:
                given_to[uuid].append(jobs[action.job_id])
        if isinstance(action, Start):
            assert len(action.devices) == len(set(action.devices)) == jobs[action.job_id].gpus
            assert all(views[u].held and views[u].looked for u in action.devices)
    for uuid, new in given_to.items():
        device = views[uuid]
        assert all(job.gpu_model in device.name.lower() for job in new)
        residents = device.residents
        if len(new) + len(residents) == 1 and not new[0].mem_bytes:
            assert device.availability.state is DeviceState.FREE
            continue
        assert all(job.mem_bytes for job in new) and all(r.budget_bytes for r in residents)
        assert len(new) + len(residents) <= snapshot.limits.jobs_per_gpu
        foreign = device.availability.foreign_bytes
        assert foreign is not None
        counted = sum(r.counted_bytes for r in residents) + sum(job.mem_bytes for job in new)
        assert foreign + counted + MARGIN_BYTES <= device.capacity_bytes
        if residents:
            assert device.held and device.availability.settling_since is None
            assert device.availability.count >= CHECKS and device.availability.at >= NOW - 0.5


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(snapshots())
def test_no_limit_is_passed(snapshot: Snapshot) -> None:
    found, limits = make_plan(snapshot), snapshot.limits
    on_jobs = {uuid for attempt in snapshot.attempts for uuid in attempt.devices}
    settling = {d.uuid for d in snapshot.devices if d.held and d.availability.state is DeviceState.SETTLING}
    placed = [action for action in found.actions if isinstance(action, Start | Claim)]
    new = {uuid for action in placed for uuid in action.devices}
    before = on_jobs | settling
    assert len(before | new) <= max(limits.max_gpus, len(before))
    tags = {job.id: job.tags for job in snapshot.waiting}
    for tag, limit in limits.tag_gpus.items():
        had = {u for attempt in snapshot.attempts if tag in attempt.job.tags for u in attempt.devices}
        more = {u for action in placed if tag in tags[action.job_id] for u in action.devices}
        assert len(had | more) <= max(limit, len(had))
    held = {device.uuid for device in snapshot.devices if device.held}
    released = {action.uuid for action in found.actions if isinstance(action, Release)}
    looked = {uuid for action in found.actions if isinstance(action, Look) for uuid in action.devices}
    assert looked <= held - released and not released & (new | on_jobs)


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(snapshots())
def test_each_waiting_job_has_one_action_or_one_reason_and_always_the_same(snapshot: Snapshot) -> None:
    found = make_plan(snapshot)
    acted = [action.job_id for action in found.actions if isinstance(action, Start | Claim)]
    assert Counter([*acted, *found.reasons]) == Counter(job.id for job in snapshot.waiting)
    assert all(reason.kind and reason.text for reason in found.reasons.values())
    assert make_plan(snapshot) == found
    assert set(found.passed) <= found.reasons.keys()


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(snapshots())
def test_of_one_shape_the_first_come_first(snapshot: Snapshot) -> None:
    """Priority is the order of the waiting jobs; a device that wants one more look makes the next one first."""
    found = make_plan(snapshot)
    placed = {action.job_id for action in found.actions if isinstance(action, Start | Claim)}
    shapes = defaultdict(list)
    for job in snapshot.waiting:
        if job.not_before <= NOW:
            shapes[job.gpus, job.mem_bytes, job.gpu_model, job.above_bytes, job.tags].append(job.id)
    for ids in shapes.values():
        waits = [job for job in ids if job not in placed and found.reasons[job].kind != "look"]
        assert waits == ids[len(ids) - len(waits) :]


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(snapshots(), st.integers(0, 15))
def test_a_job_behind_all_others_takes_nothing_from_them(snapshot: Snapshot, gpus: int) -> None:
    """Whatever is added at the end of the queue, the others get what they would have got."""
    last = build.job(99, gpus % 4, mem_gib=gpus // 4 if gpus % 4 else 0)
    before, after = make_plan(snapshot), make_plan(replace(snapshot, waiting=(*snapshot.waiting, last)))
    kept = [action for action in after.actions if not isinstance(action, Release | Look)]
    mine = [action for action in kept if isinstance(action, Start | Claim) and action.job_id == 99]
    assert [action for action in kept if action not in mine] == [
        action for action in before.actions if not isinstance(action, Release | Look)
    ]
    assert {job: reason for job, reason in after.reasons.items() if job != 99} == before.reasons


# ---- nobody starves --------------------------------------------------------------------------------

LONGEST_S, STEP_S = 60.0, 5.0


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(
    st.lists(st.sampled_from([24, 24, 80]), min_size=1, max_size=5),
    st.integers(1, 5),
    st.sampled_from([0.0, 5.0, 20.0, 70.0]),
    st.lists(st.sampled_from([0.0, 1.0, 3.0, 8.0, 20.0]), min_size=1, max_size=4),
    st.sampled_from([0.0, 30.0, 120.0]),
    STRATEGIES,
    st.integers(0, 999),
)
def test_no_job_waits_longer_than_others_may_pass_it(
    totals: list[int], gpus: int, mem_gib: float, small: list[float], bypass_s: float, strategy: str, seed: int
) -> None:
    """Small jobs come without end behind a large one; as soon as it may not be passed any more, it is next."""
    assume(sum(total - 1 >= mem_gib for total in totals) >= gpus)
    limits = Limits(len(totals), 1, 4, {}, strategy, bypass_s)
    box = Box(totals, limits, lambda job: 3.0 + (job.id * 7919 + seed) % (LONGEST_S - 3))
    numbers = iter(range(2, 100_000))

    def fill(upto: int) -> None:
        while len(box.waiting) < upto:
            number = next(numbers)
            box.waiting.append(build.job(number, mem_gib=small[number % len(small)]))

    fill(8)
    for _ in range(8):
        box.step(STEP_S)
        fill(8)
    began = box.now
    box.waiting.insert(0, build.job(1, gpus, mem_gib=mem_gib))
    while 1 not in box.started_at and box.now < began + 3600:
        box.step(STEP_S)
        fill(12)
    assert box.started_at.get(1, 9e9) <= began + bypass_s + 2 * (LONGEST_S + 2 * STEP_S)


# ---- nothing starts before what it depends on ------------------------------------------------------

KINDS = st.sampled_from(DependencyKind)


@st.composite
def lists(draw: st.DrawFn) -> list[JobSpec]:
    """Jobs that wait for names and tags of those before them in some hidden order, so mostly in no circle."""
    count = draw(st.integers(1, 12))
    order = draw(st.permutations(range(count)))
    specs: dict[int, JobSpec] = {}
    for rank, n in enumerate(order):
        earlier = [f"n{m}" for m in order[:rank]]
        earlier += sorted({tag for m in order[:rank] for tag in specs[m].attributes.tags})
        after = []
        for kind in draw(st.lists(KINDS, max_size=2, unique=True)) if earlier else ():
            after.append(Dependency(kind, tuple(draw(st.lists(st.sampled_from(earlier), min_size=1, max_size=3)))))
        tags = (f"t{rank % 3}",) if not any(ref.startswith("t") for each in after for ref in each.refs) else ()
        text = b"%d" % n
        specs[n] = JobSpec(text, text, n + 1, 1, Attributes(name=f"n{n}", tags=tags, after=tuple(after)))
    return [specs[n] for n in range(count)]


def satisfied(kind: DependencyKind, states: Sequence[JobState]) -> bool:
    """What the manual says of a dependency, in the simplest words."""
    over = [state for state in states if state in ENDED_STATES]
    if kind is DependencyKind.SUCCEEDED:
        return all(state is JobState.SUCCEEDED for state in states)
    if kind is DependencyKind.ANY:
        return not states or JobState.SUCCEEDED in states
    if kind is DependencyKind.FAILED:
        # a job that was cancelled because it could never start counts as failed
        return len(over) == len(states) and bool({JobState.FAILED, JobState.CANCELLED} & set(states))
    return len(over) == len(states)


@pytest.mark.slow
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from(["cancel", "hold"]))
def test_nothing_starts_before_what_it_depends_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, on_dep_fail: str
) -> None:
    specs = data.draw(lists())
    store = Store(str(tmp_path_factory.mktemp("q") / "queue.db"), create=True)
    meta_table.write(store, "on_dep_fail", on_dep_fail)
    assume(not check(specs))  # by a tag
    submission.submit(
        store, specs, lambda spec: Requirements(name=spec.attributes.name, tags=spec.attributes.tags), NOW
    )
    run_to_the_end(store, specs, data)
    store.close()


def run_to_the_end(store: Store, specs: Sequence[JobSpec], data: st.DataObject) -> None:
    head = QueueHead(store)
    running: dict[str, int] = {}
    ids = {spec.attributes.name: job.id for spec, job in zip(specs, job_table.jobs(store), strict=True)}
    refs: dict[str, list[int]] = {name: [job_id] for name, job_id in ids.items()}
    for spec in specs:
        for tag in spec.attributes.tags:
            refs.setdefault(tag, []).append(ids[spec.attributes.name])
    for _ in range(6 * len(specs)):
        if transitions.take_freed(store) or data.draw(st.booleans()):
            head.forget()
        views = [card(n, *([0] if f"GPU-{n}" in running else []), held=True) for n in range(2)]
        attempts = tuple(build.attempt(job, uuid) for uuid, job in running.items())
        found = head.plan(Snapshot(NOW, Limits(2), tuple(views), attempts=attempts, max_checks=CHECKS))
        states = {job.id: job.state for job in job_table.jobs(store)}
        for action in found.actions:
            if isinstance(action, Start):
                spec = next(spec for spec in specs if ids[spec.attributes.name] == action.job_id)
                for each in spec.attributes.after:
                    others = {job_id for ref in each.refs for job_id in refs[ref]} - {action.job_id}
                    assert satisfied(each.kind, [states[job_id] for job_id in others]), (spec, states)
                assert attempt_table.start(store, action.job_id, NOW, "log", "", ()) is not None
                running[action.devices[0]] = action.job_id
        head.take_out(set(running.values()))
        if not running:
            break
        uuid = data.draw(st.sampled_from(sorted(running)))
        outcome = Outcome(OutcomeKind.EXITED, data.draw(st.sampled_from([0, 0, 1])))
        verdict = judge(outcome, build.job(), cancel_asked=False)
        job_id = running.pop(uuid)
        attempt_table.close(
            store, job_id, job_table.get(store, job_id).attempts, AttemptEnd(outcome, NOW), verdict, now=NOW
        )
        failed = [job.id for job in job_table.jobs(store, [JobState.FAILED])]
        if failed and data.draw(st.integers(0, 4)) == 0:
            job_table.requeue(store, data.draw(st.sampled_from(failed)))
            head.forget()
    # what is left waits for what somebody holds
    if not running and not startable_jobs.has_any(store):
        left = {job.state for job in job_table.jobs(store)} - ENDED_STATES
        assert left <= {JobState.HELD, JobState.QUEUED} and (JobState.QUEUED not in left or JobState.HELD in left)
