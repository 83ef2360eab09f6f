"""The head of the queue: planning with it is planning with the whole queue, whatever waits there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.core.jobs.lifecycle import JobEvent, Verdict
from gpusched.core.model import MIB, Attributes, JobSpec, Outcome, OutcomeKind, Requirements
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Claim, DeviceView, Limits, Snapshot, Start
from gpusched.dispatcher.jobs import queue_head
from gpusched.dispatcher.jobs.queue_head import QueueHead
from gpusched.host.store import Store, attempt_table, job_table, startable_jobs, submission
from gpusched.host.store.attempt_table import AttemptEnd, NextAttempt
from gpusched.host.store.startable_jobs import SHAPES_MAX
from tests.core.test_placement import card
from tests.support.build import GIB

NOW = 1000.0


def submit(store: Store, wanted: Sequence[Requirements], text: bytes = b"x") -> None:
    """Add a list of such jobs to what is there."""
    by_line = dict(enumerate(wanted, 1))
    specs = [JobSpec(text, text + b"%d" % n, n, 1, Attributes(name=needs.name)) for n, needs in by_line.items()]
    submission.submit(store, specs, lambda spec: by_line[spec.line], NOW, complete=False)


def box(free: int, of: int, mem_gib: float = 0) -> tuple[DeviceView, ...]:
    """Cards of which the last ones run a job each, with a budget if any is given."""
    return tuple(card(n) if n < free else card(n, mem_gib) for n in range(of))


def placed(store: Store, views: Sequence[DeviceView], limits: Limits, *, held: bool = False) -> tuple[list[int], int]:
    """The jobs that get devices by the head, in order, as by the whole queue; and how many of it were read."""
    views = [replace(view, held=held or view.held, looked=held or view.looked) for view in views]
    snapshot = Snapshot(NOW, limits, tuple(views))
    found = QueueHead(store)
    plan = found.plan(snapshot)
    whole = tuple(row for row in job_table.waiting(store) if not row.blocked)
    expected = make_plan(replace(snapshot, waiting=whole))
    assert plan.actions == expected.actions
    assert plan.reasons.items() <= expected.reasons.items()
    return [action.job_id for action in plan.actions if isinstance(action, Start | Claim)], len(found.rows)


def test_few_jobs_of_a_long_queue_are_read(store: Store) -> None:
    submit(store, [Requirements(mem_bytes=(1 + n % 7) * GIB, tags=(f"t{n}",), name=f"n{n}") for n in range(2000)])
    started, read = placed(store, box(1, 8), Limits(8), held=True)
    assert started == [1, 2, 3, 4]
    assert read <= queue_head.PAGE_SUM


def test_as_many_as_can_start_are_found_in_their_order(store: Store) -> None:
    """However many of one shape come before the others."""
    submit(store, [Requirements(gpu_model="" if n < 300 else "NVIDIA", mem_bytes=GIB) for n in range(600)])
    started, _ = placed(store, box(64, 64), Limits(64), held=True)
    assert started == list(range(1, 257))


def test_what_has_started_makes_room_for_those_behind_it(store: Store) -> None:
    submit(store, [Requirements(prio=n % 3) for n in range(400)])
    found = QueueHead(store)
    snapshot = Snapshot(NOW, Limits(4), tuple(replace(view, held=True, looked=True) for view in box(4, 4)))
    order = []
    for _ in range(100):
        starts = [action for action in found.plan(snapshot).actions if isinstance(action, Start)]
        gone = {start.job_id for start in starts}
        for start in starts:
            order.append(start.job_id)
            assert attempt_table.start(store, start.job_id, NOW, "log", "", ())
        found.take_out(gone)
    assert order == [n for prio in (2, 1, 0) for n in range(1, 401) if (n - 1) % 3 == prio]
    assert found.plan(snapshot).actions == make_plan(snapshot).actions


def test_jobs_of_the_same_place_in_two_lists(store: Store) -> None:
    submit(store, [Requirements()] * 3)
    submit(store, [Requirements(gpus=2)] * 3, b"y")
    assert placed(store, box(4, 4), Limits(4))[0] == [1, 4, 2]


def test_with_very_many_shapes_the_order_counts(store: Store) -> None:
    wanted = [Requirements(mem_bytes=n * MIB, prio=-n) for n in range(SHAPES_MAX * 2, 0, -1)]
    submit(store, wanted)
    first = QueueHead(store).plan(Snapshot(NOW, Limits(1), box(1, 1)))
    assert [action for action in first.actions if isinstance(action, Claim)] == [Claim(len(wanted), ("GPU-0",))]


def test_a_budget_that_has_grown_is_of_another_shape(store: Store) -> None:
    submit(store, [Requirements(mem_bytes=GIB, retries=1), Requirements(mem_bytes=2 * GIB), Requirements(gpus=0)])
    before = [row.shape for row in job_table.jobs(store)]
    for job in (1, 3):
        attempt_table.start(store, job, NOW, "log", "", ())
        oom = Outcome(OutcomeKind.EXITED, 1, cause="gpu_oom")
        verdict = Verdict(JobEvent.RETRIED, 1, 0)
        attempt_table.close(store, job, 1, AttemptEnd(oom, NOW), verdict, NextAttempt(mem_bytes=2 * GIB), now=NOW)
    assert [row.shape for row in job_table.jobs(store)] == [before[1], before[1], before[2]]
    assert startable_jobs.shapes(store) == sorted({before[1], before[2]})


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "gpus": st.sampled_from([0, 1, 1, 1, 2, 3]),
    "mem_bytes": st.sampled_from([0, 0, GIB, 2 * GIB, 5 * GIB, 11 * GIB, 30 * GIB]),
    "prio": st.sampled_from([0, 0, 0, 1, -1]),
    "gpu_model": st.sampled_from(["", "", "L4", "A100"]),
    "tags": st.sampled_from([(), (), ("t",), ("u",), ("t", "u"), ("free",)]),
}
NEEDS = st.fixed_dictionaries(FIELDS).map(lambda values: Requirements(**values))  # builds() would choose all fields


@pytest.mark.slow
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(NEEDS, max_size=60),
    st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 2.0, 9.0]), st.sampled_from([24, 80])), max_size=6),
    st.integers(1, 6),
    st.integers(1, 4),
    st.dictionaries(st.sampled_from("tu"), st.integers(1, 3)),
    st.sampled_from(["fill-first", "round-robin", "memory-aware"]),
    st.booleans(),
)
def test_the_head_plans_like_the_whole_queue(
    tmp_path_factory: pytest.TempPathFactory,
    wanted: list[Requirements],
    cards: list[tuple[bool, float, int]],
    max_gpus: int,
    sharing: int,
    tag_gpus: dict[str, int],
    strategy: str,
    held: bool,
) -> None:
    store = Store(str(tmp_path_factory.mktemp("q") / "queue.db"), create=True)
    limits = Limits(max_gpus, 2, sharing, tag_gpus, strategy)
    limited = [n._replace(limited_tags=tuple(t for t in n.tags if t in tag_gpus)) for n in wanted]
    submit(store, limited)
    views = [
        card(n, *(() if free else (mem,)), total_gib=total, name="NVIDIA A100" if total == 80 else "NVIDIA L4")
        for n, (free, mem, total) in enumerate(cards)
    ]
    placed(store, views, limits, held=held)
    store.close()
