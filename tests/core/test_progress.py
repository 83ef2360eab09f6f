"""Jobs that say how many items they do: counted by the queue, shown together, and what they took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.core.jobs.lifecycle import JobEvent, Verdict
from gpusched.core.jobs.progress import ItemCount, ItemGroup, Span, groups, items_done, slowest_left_s, times
from gpusched.core.jobs.reconcile import CAUSE_REMOVED
from gpusched.core.model import JobSpec, JobState, Outcome, OutcomeKind, Requirements, RunningView
from gpusched.host.store import Store, attempt_table, job_table, queue_totals, submission
from gpusched.host.store.attempt_table import AttemptEnd
from gpusched.lists.jobfile import parse
from gpusched.views.report import group_line
from tests.views.test_live import running_view

OK = Outcome(OutcomeKind.EXITED, 0)


def needs(spec: JobSpec) -> Requirements:
    return Requirements(tags=spec.attributes.tags, name=spec.attributes.name, items=spec.attributes.items)


def specs(text: str) -> tuple[JobSpec, ...]:
    found = parse(text.encode())
    assert not found.errors
    return found.specs


def recount(store: Store) -> set[ItemCount]:
    found: dict[Any, list[int]] = {}
    for job in job_table.jobs(store):
        if job.items and job.cause != CAUSE_REMOVED and (job.listed or job.state is JobState.SUCCEEDED):
            sums = found.setdefault((job.tags, job.state), [0, 0])
            sums[0] += 1
            sums[1] += job.items
    return {ItemCount(tags, state, jobs, items) for (tags, state), (jobs, items) in found.items()}


def test_the_queue_counts_items_as_jobs_come_and_go(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "queue.db"), create=True)
    try:
        first = "[tag=a items=5] x 1\n[tag=a items=7] x 2\n[tag=a,b items=1] x 3\n[items=2] x 4\nx 5\n[tag=a] x 6\n"
        submission.submit(store, specs(first), needs, 1.0)

        def counted() -> set[ItemCount]:
            found = {each for each in queue_totals.item_counts(store) if each.jobs}
            assert found == recount(store)
            assert all(each.jobs == each.items == 0 for each in queue_totals.item_counts(store) if not each.jobs)
            return found

        assert ItemCount(("a",), JobState.QUEUED, 2, 12) in counted()
        assert len(counted()) == 3
        number = attempt_table.start(store, 1, 2.0, "log", "", ())
        assert number == 1
        assert ItemCount(("a",), JobState.RUNNING, 1, 5) in counted()
        attempt_table.close(store, 1, 1, AttemptEnd(OK, 5.0), Verdict(JobEvent.SUCCEEDED, 1, 0), now=5.0)
        assert ItemCount(("a",), JobState.SUCCEEDED, 1, 5) in counted()
        job_table.cancel(store, 2, 6.0)
        assert ItemCount(("a",), JobState.CANCELLED, 1, 7) in counted()
        submission.submit(
            store, specs("[tag=a items=5] x 1\n[tag=c items=9] x 3\nx 4\n[tag=a items=4] x 5\n"), needs, 7.0
        )
        assert ItemCount(("c",), JobState.QUEUED, 1, 9) in counted()
        assert ItemCount(("a",), JobState.QUEUED, 1, 4) in counted()
        assert queue_totals.item_spans(store, ("a",)) == [Span(1, "", 5, 2.0, 5.0, True)]
        assert queue_totals.item_seconds(store, ("a",)) == 3.0
    finally:
        store.close()


def view(items: int, progress: str) -> RunningView:
    from dataclasses import replace

    found = running_view(1, progress=progress)
    return replace(found, job=replace(found.job, items=items, tags=("t",)))


def test_a_group_counts_what_its_running_jobs_say() -> None:
    counts = [
        ItemCount(("t",), JobState.SUCCEEDED, 2, 20),
        ItemCount(("t",), JobState.RUNNING, 2, 20),
        ItemCount(("t",), JobState.QUEUED, 1, 10),
        ItemCount(("t",), JobState.CANCELLED, 1, 10),
        ItemCount(("u",), JobState.FAILED, 0, 0),
        ItemCount((), JobState.FAILED, 1, 3),
    ]
    running = [view(10, '{"done": 50, "total": 100}'), view(10, ""), view(0, '{"done": 1}')]
    found = groups(counts, running)
    assert found == [ItemGroup((), 1, 0, 3, 0.0), ItemGroup(("t",), 6, 2, 60, 25.0)]
    assert [group.name for group in found] == ["items", "t"]
    assert group_line(found[1], 2.5).text == "25/60 items  2.5/s  ~15 s left  2 of 6 jobs done"
    assert group_line(found[1], 0.05).text == "25/60 items  3.0/min  ~12 min left  2 of 6 jobs done"
    assert group_line(found[0], 0.0).text == "0/3 items  0 of 1 job done"


def test_the_time_left_is_that_of_the_slowest_running_job() -> None:
    group = ItemGroup(("t",), 4, 2, 40, 25.0)
    at = view(10, "").attempt.started_at
    slow = [view(10, '{"done": 1, "total": 10}'), view(10, '{"done": 5, "total": 10}')]
    assert slowest_left_s(slow, 5.0, at + 4) == pytest.approx(36)
    assert group_line(group, 5.0, 36.0).text == "25/40 items  5.0/s  ~35 s left  2 of 4 jobs done"
    silent = [view(10, ""), view(10, "")]
    assert slowest_left_s(silent, 5.0, at + 1) == pytest.approx(3), "ten items at 2.5 items per second"
    assert slowest_left_s(silent, 5.0, at + 5) is None, "it takes longer than expected"
    assert group_line(group, 5.0, None).text == "25/40 items  5.0/s  2 of 4 jobs done"
    assert slowest_left_s([], 5.0, at) == slowest_left_s(silent, 0.0, at + 9) == 0.0


@given(st.integers(1, 1000), st.floats(-1e9, 1e9), st.one_of(st.none(), st.floats(-10, 1e9)))
def test_no_job_does_more_than_its_items(items: int, done: float, total: float | None) -> None:
    told = {"done": done} | ({} if total is None else {"total": total})
    assert 0 <= items_done(items, told) <= items
    assert items_done(items, {}) == 0


def test_what_running_at_once_has_brought() -> None:
    spans = [
        Span(1, "a", 10, 0.0, 4.0, True),
        Span(2, "b", 10, 0.0, 1.0, False),
        Span(2, "b", 10, 1.0, 7.0, True),
        Span(3, "c", 10, 20.0, 24.0, True),
    ]
    took = times(spans)
    assert took is not None
    assert (took.wall_s, took.at_once, took.median_s, took.slowest_s) == (11.0, 2, 4.0, 6.0)
    assert took.speed_up == pytest.approx(14 / 11)
    assert took.efficiency == pytest.approx(7 / 11)
    assert took.items_per_s == pytest.approx(30 / 11)
    assert times(spans[1:2]) is None


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 10)), min_size=1, max_size=20))
def test_efficiency_is_never_above_one(starts: list[tuple[float, float]]) -> None:
    took = times([Span(n, "", 1, at, at + long, True) for n, (at, long) in enumerate(starts)])
    assert took is not None
    assert 0 <= took.efficiency <= 1 + 1e-6
