"""What a job waits for: references found, circles found, and when the wait is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.core.jobs.readiness import (
    DependencyTally,
    JobIndex,
    ListedJob,
    Readiness,
    UnknownReference,
    find_cycle,
    readiness,
)
from gpusched.core.model import (
    ENDED_STATES,
    Attributes,
    Dependency,
    DependencyKind,
    JobSpec,
    JobState,
    Requirements,
)
from gpusched.host.store import Store, dependency_table, job_table, submission

AFTER, ANY = DependencyKind.SUCCEEDED, DependencyKind.ANY
AFTER_FAILED, AFTER_ENDED = DependencyKind.FAILED, DependencyKind.ENDED
READY, WAITING, IMPOSSIBLE = Readiness.READY, Readiness.WAITING, Readiness.IMPOSSIBLE
QUEUED, HELD, RUNNING = JobState.QUEUED, JobState.HELD, JobState.RUNNING
SUCCEEDED, FAILED, CANCELLED = JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED

JOBS = JobIndex(
    [
        ListedJob(1, "prep", ("data",)),
        ListedJob(2, "train-a", ("train", "a")),
        ListedJob(3, "train-b", ("train",)),
        ListedJob(4, "", ("train",)),
        ListedJob(5, "7"),
        ListedJob(6, "train"),
        ListedJob(7),
    ]
)


def outlook(groups: Sequence[tuple[DependencyKind, Sequence[JobState]]]) -> Readiness:
    return readiness([(kind, DependencyTally.of(states)) for kind, states in groups])


# ---- references ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "ids"),
    [
        ("prep", (1,)),
        ("data", (1,)),
        ("a", (2,)),
        ("train", (6,)),  # a name before a tag of the same spelling
        ("4", (4,)),
        ("007", (7,)),
        ("7", (5,)),  # a name before an id
    ],
)
def test_a_reference_is_a_name_a_tag_or_an_id(ref: str, ids: tuple[int, ...]) -> None:
    assert JOBS.find(ref) == ids


def test_a_tag_means_all_that_bear_it() -> None:
    directory = JobIndex([ListedJob(n, "", ("t",) if n % 2 else ("t", "even")) for n in range(1, 7)])
    assert directory.find("t") == (1, 2, 3, 4, 5, 6)
    assert directory.find("even") == (2, 4, 6)


@pytest.mark.parametrize("ref", ["Prep", "8", "0", "-1", "", "1.0", "²", "٣", "train-"])
def test_what_nobody_is_called_is_told(ref: str) -> None:
    with pytest.raises(UnknownReference) as caught:
        JOBS.find(ref)
    assert caught.value.ref == ref


def test_what_can_be_named_is_there_for_a_hint() -> None:
    assert JOBS.names() == ["prep", "train-a", "train-b", "7", "train", "data", "a"]


def test_each_dependency_is_resolved_apart_and_no_job_counts_twice() -> None:
    after = (Dependency(AFTER, ("prep", "1", "data")), Dependency(ANY, ("3", "train-a", "train-b")))
    assert JOBS.resolve(9, after) == [(AFTER, (1,)), (ANY, (3, 2))]
    assert JOBS.resolve(9, ()) == []


def test_a_job_does_not_wait_for_itself_where_it_bears_the_tag() -> None:
    directory = JobIndex([ListedJob(1, "a", ("t",)), ListedJob(2, "b", ("t",))])
    assert directory.resolve(2, (Dependency(AFTER, ("t",)),)) == [(AFTER, (1,))]
    assert directory.resolve(2, (Dependency(AFTER, ("b", "2")),)) == [(AFTER, (2,))]  # a circle


def test_an_unknown_reference_among_known_ones_is_told() -> None:
    with pytest.raises(UnknownReference, match="nobody"):
        JOBS.resolve(9, (Dependency(AFTER, ("prep",)), Dependency(ANY, ("prep", "nobody"))))


# ---- circles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upstream", "circle"),
    [
        ({}, []),
        ({1: []}, []),
        ({2: [1], 3: [1, 2], 4: [3, 2]}, []),
        ({1: [1]}, [1]),
        ({1: [2], 2: [1]}, [1, 2]),
        ({1: [2], 2: [3], 3: [4], 4: [2]}, [2, 3, 4]),
        ({1: [9, 2], 2: [8, 3], 3: [1]}, [1, 2, 3]),
    ],
)
def test_a_circle_is_named_in_its_order(upstream: dict[int, list[int]], circle: list[int]) -> None:
    assert find_cycle(upstream) == circle


def test_long_chains_need_no_deep_stack() -> None:
    chain = {n: [n - 1] for n in range(1, 20_001)}
    assert find_cycle(chain) == []
    assert find_cycle(dict(reversed(chain.items()))) == []
    chain[1] = [20_000]
    assert len(find_cycle(chain)) == 20_000


def test_many_paths_are_walked_once() -> None:
    """Two ways at each of 2,000 forks: 2^2000 paths."""
    ladder = {n: [n + 2 - n % 2, n + 3 - n % 2] for n in range(4_000)}
    assert find_cycle(ladder) == []
    wide = {n: range(1, 301) for n in range(1_000, 1_300)}
    assert find_cycle(wide) == []


@st.composite
def graphs(draw: st.DrawFn) -> dict[int, list[int]]:
    nodes = range(draw(st.integers(0, 8)))
    others = st.lists(st.integers(0, 8), max_size=3)
    return {node: draw(others) for node in nodes}


def is_acyclic(upstream: dict[int, list[int]]) -> bool:
    """By taking away, again and again, what waits for nobody."""
    left = {node: set(ups) & upstream.keys() for node, ups in upstream.items()}
    while free := [node for node, ups in left.items() if not ups & left.keys()]:
        for node in free:
            del left[node]
    return not left


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(graphs())
def test_a_circle_is_found_where_there_is_one(upstream: dict[int, list[int]]) -> None:
    circle = find_cycle(upstream)
    assert bool(circle) is not is_acyclic(upstream)
    if circle:
        assert len(set(circle)) == len(circle)
        assert all(following in upstream[job] for job, following in pairwise([*circle, circle[0]]))


# ---- when the wait is over -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "after", "any_", "failed", "ended"),
    [
        ([], READY, READY, IMPOSSIBLE, READY),
        ([QUEUED], WAITING, WAITING, WAITING, WAITING),
        ([HELD], WAITING, WAITING, WAITING, WAITING),
        ([RUNNING], WAITING, WAITING, WAITING, WAITING),
        ([SUCCEEDED], READY, READY, IMPOSSIBLE, READY),
        ([FAILED], IMPOSSIBLE, IMPOSSIBLE, READY, READY),
        ([CANCELLED], IMPOSSIBLE, IMPOSSIBLE, IMPOSSIBLE, READY),
        ([SUCCEEDED, RUNNING], WAITING, READY, WAITING, WAITING),
        ([FAILED, RUNNING], IMPOSSIBLE, WAITING, WAITING, WAITING),
        ([CANCELLED, QUEUED], IMPOSSIBLE, WAITING, WAITING, WAITING),
        ([SUCCEEDED, FAILED], IMPOSSIBLE, READY, READY, READY),
        ([SUCCEEDED, CANCELLED], IMPOSSIBLE, READY, IMPOSSIBLE, READY),
        ([FAILED, CANCELLED], IMPOSSIBLE, IMPOSSIBLE, READY, READY),
        ([SUCCEEDED, SUCCEEDED], READY, READY, IMPOSSIBLE, READY),
    ],
)
def test_the_table(
    states: list[JobState], after: Readiness, any_: Readiness, failed: Readiness, ended: Readiness
) -> None:
    kinds = (AFTER, ANY, AFTER_FAILED, AFTER_ENDED)
    assert tuple(outlook([(kind, states)]) for kind in kinds) == (after, any_, failed, ended)


def test_all_dependencies_count_and_the_worst_decides() -> None:
    assert outlook([]) is READY
    good, slow, lost = (AFTER, [SUCCEEDED]), (AFTER, [RUNNING]), (AFTER, [FAILED])
    assert outlook([good, (AFTER_ENDED, [CANCELLED])]) is READY
    assert outlook([slow, good]) is outlook([good, slow]) is WAITING
    assert outlook([slow, lost]) is outlook([lost, slow]) is IMPOSSIBLE


STATES = st.lists(st.sampled_from(JobState), max_size=5)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.sampled_from(DependencyKind), STATES)
def test_what_is_settled_stays_so_however_the_rest_ends(kind: DependencyKind, states: list[JobState]) -> None:
    """READY and IMPOSSIBLE are told as soon as nothing that may happen changes them, and not before."""
    outlooks = {outlook([(kind, ended)]) for ended in endings(states)}
    now = outlook([(kind, states)])
    assert WAITING not in outlooks
    if now is not WAITING:
        assert outlooks == {now}
    elif kind is AFTER or kind is ANY:
        assert outlooks == {READY, IMPOSSIBLE}


def endings(states: Sequence[JobState]) -> list[list[JobState]]:
    """All ways in which the jobs that have not ended may end."""
    ways: list[list[JobState]] = [[]]
    for state in states:
        ends = [state] if state in ENDED_STATES else sorted(ENDED_STATES)
        ways = [[*way, end] for way in ways for end in ends]
    return ways


# ---- lists that are edited -------------------------------------------------------------------------


def line(text: bytes, *tags: str, name: str = "", after: str = "") -> JobSpec:
    waits = (Dependency(AFTER, (after,)),) if after else ()
    return JobSpec(text, text, 1, 1, Attributes(name=name, tags=tags, after=waits))


def needs(spec: JobSpec) -> Requirements:
    return Requirements(name=spec.attributes.name, tags=spec.attributes.tags)


def submit(store: Store, *specs: JobSpec, **more: bool) -> dict[str, tuple[str, bool]]:
    """What the queue holds after this list: the state of each job, and whether it is blocked."""
    submission.submit(store, [replace(spec, line=n) for n, spec in enumerate(specs, 1)], needs, 100.0, **more)
    return {job.command.decode(): (job.state.value, job.blocked) for job in job_table.jobs(store)}


def test_a_line_that_is_edited_takes_its_dependants_along(tmp_path: Path) -> None:
    """Its job is removed, which is no reason to cancel what waits for the new one."""
    store = Store(str(tmp_path / "queue.db"), create=True)
    evaluate = line(b"eval", after="train")
    assert submit(store, line(b"one", "train"), evaluate)["eval"] == ("queued", True)
    found = submit(store, line(b"two", "train"), evaluate)
    assert found == {"one": ("cancelled", False), "two": ("queued", False), "eval": ("queued", True)}
    assert [job.command for _, job in dependency_table.upstream(store, 2)] == [b"two"]
    assert submit(store, line(b"one", "train"), evaluate)["one"] == ("queued", False)
    assert [job.command for _, job in dependency_table.upstream(store, 2)] == [b"one"]
    store.close()


def test_what_a_dependency_cancelled_is_freed_when_it_no_longer_depends(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "queue.db"), create=True)
    submit(store, line(b"one", name="a"), line(b"two", name="b", after="a"), line(b"three", after="b"))
    job_table.cancel(store, 1, 101.0)
    assert [job.state for job in job_table.jobs(store)] == [CANCELLED] * 3
    found = submit(store, line(b"one", name="a"), line(b"two", name="b"), line(b"three", after="b"))
    assert found == {"one": ("cancelled", False), "two": ("queued", False), "three": ("queued", True)}
    store.close()


def test_many_behind_many_cost_a_row_each(tmp_path: Path) -> None:
    """Jobs that wait for the same ones share a set: no row for each pair, and none weighed before it is decided."""
    store = Store(str(tmp_path / "queue.db"), create=True)
    first = [line(b"first %d" % n, "a") for n in range(30)]
    submit(store, *first, *(line(b"second %d" % n, after="a") for n in range(30)))
    rows = {table: store.scalar(f"SELECT count(*) FROM {table}") for table in ("sets", "members", "dependencies")}
    assert rows == {"sets": 1, "members": 30, "dependencies": 30}
    job_table.cancel(store, 1, 101.0)
    assert sum(job.state is CANCELLED and job.cause == "dependency" for job in job_table.jobs(store)) == 30
    job_table.requeue(store, 1)
    assert all(job.state is QUEUED for job in job_table.jobs(store))
    assert sum(job.blocked for job in job_table.jobs(store)) == 30
    tallies = store.rows("SELECT total, succeeded, failed, cancelled FROM sets")
    assert tallies == [(30, 0, 0, 0)]
    store.close()
