"""What a job waits for: references found, circles found, and when the wait is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.core.jobs.lifecycle import JobEvent
from gpusched.core.jobs.readiness import (
    CAUSE_DEPENDENCY,
    CAUSE_NOT_NEEDED,
    DependencyTally,
    JobIndex,
    ListedJob,
    Readiness,
    UnknownReference,
    end_of,
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
from gpusched.host.store import Store, dependency_table, job_table, submission, transitions

AFTER, ANY = DependencyKind.SUCCEEDED, DependencyKind.ANY
AFTER_FAILED, AFTER_ENDED = DependencyKind.FAILED, DependencyKind.ENDED
READY, WAITING, IMPOSSIBLE = Readiness.READY, Readiness.WAITING, Readiness.IMPOSSIBLE
UNNEEDED = Readiness.UNNEEDED
STOPPED, SPARE = CAUSE_DEPENDENCY, CAUSE_NOT_NEEDED  # jobs that were cancelled by themselves
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


def outlook(groups: Sequence[tuple[DependencyKind, Sequence[JobState | str]]]) -> Readiness:
    return readiness([(kind, tally(states)) for kind, states in groups])


def tally(states: Sequence[JobState | str]) -> DependencyTally:
    """Jobs in these states, or cancelled for these causes."""
    ends = Counter(end_of(s, "") if isinstance(s, JobState) else end_of(CANCELLED, s) for s in states)
    del ends[""]
    return DependencyTally(len(states), **ends)


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
        ([], READY, READY, UNNEEDED, READY),
        ([QUEUED], WAITING, WAITING, WAITING, WAITING),
        ([HELD], WAITING, WAITING, WAITING, WAITING),
        ([RUNNING], WAITING, WAITING, WAITING, WAITING),
        ([SUCCEEDED], READY, READY, UNNEEDED, READY),
        ([FAILED], IMPOSSIBLE, IMPOSSIBLE, READY, READY),
        ([CANCELLED], IMPOSSIBLE, IMPOSSIBLE, UNNEEDED, READY),
        ([STOPPED], IMPOSSIBLE, IMPOSSIBLE, READY, READY),
        ([SPARE], UNNEEDED, UNNEEDED, UNNEEDED, READY),
        ([SUCCEEDED, RUNNING], WAITING, READY, WAITING, WAITING),
        ([FAILED, RUNNING], IMPOSSIBLE, WAITING, WAITING, WAITING),
        ([CANCELLED, QUEUED], IMPOSSIBLE, WAITING, WAITING, WAITING),
        ([SUCCEEDED, FAILED], IMPOSSIBLE, READY, READY, READY),
        ([SUCCEEDED, CANCELLED], IMPOSSIBLE, READY, UNNEEDED, READY),
        ([SUCCEEDED, STOPPED], IMPOSSIBLE, READY, READY, READY),
        ([SUCCEEDED, SPARE], UNNEEDED, READY, UNNEEDED, READY),
        ([FAILED, SPARE], IMPOSSIBLE, IMPOSSIBLE, READY, READY),
        ([SPARE, RUNNING], WAITING, WAITING, WAITING, WAITING),
        ([FAILED, CANCELLED], IMPOSSIBLE, IMPOSSIBLE, READY, READY),
        ([SUCCEEDED, SUCCEEDED], READY, READY, UNNEEDED, READY),
    ],
)
def test_the_table(
    states: list[JobState | str], after: Readiness, any_: Readiness, failed: Readiness, ended: Readiness
) -> None:
    kinds = (AFTER, ANY, AFTER_FAILED, AFTER_ENDED)
    assert tuple(outlook([(kind, states)]) for kind in kinds) == (after, any_, failed, ended)


def test_all_dependencies_count_and_the_worst_decides() -> None:
    assert outlook([]) is READY
    good, slow, lost = (AFTER, [SUCCEEDED]), (AFTER, [RUNNING]), (AFTER, [FAILED])
    assert outlook([good, (AFTER_ENDED, [CANCELLED])]) is READY
    assert outlook([slow, good]) is outlook([good, slow]) is WAITING
    assert outlook([slow, lost]) is outlook([lost, slow]) is IMPOSSIBLE
    spare = (AFTER_FAILED, [SUCCEEDED])
    assert outlook([good, spare]) is UNNEEDED
    assert outlook([lost, spare]) is IMPOSSIBLE
    assert outlook([slow, spare]) is WAITING  # it can still come to be IMPOSSIBLE


STATES: st.SearchStrategy[list[JobState | str]] = st.lists(st.sampled_from([*JobState, STOPPED, SPARE]), max_size=5)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.sampled_from(DependencyKind), STATES)
def test_what_is_settled_stays_so_however_the_rest_ends(kind: DependencyKind, states: list[JobState | str]) -> None:
    """READY, IMPOSSIBLE and UNNEEDED are told as soon as nothing that may happen changes them, and not before."""
    outlooks = {outlook([(kind, ended)]) for ended in endings(states)}
    now = outlook([(kind, states)])
    assert WAITING not in outlooks
    if now is not WAITING:
        assert outlooks == {now}
    elif kind is AFTER or kind is ANY:
        assert {READY, IMPOSSIBLE} >= outlooks - {UNNEEDED} and len(outlooks) > 1


def endings(states: Sequence[JobState | str]) -> list[list[JobState | str]]:
    """All ways in which the jobs that have not ended may end."""
    ways: list[list[JobState | str]] = [[]]
    for state in states:
        ends = [STOPPED, SPARE, *ENDED_STATES] if state in set(JobState) - ENDED_STATES else [state]
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
    submission.submit(store, [spec._replace(line=n) for n, spec in enumerate(specs, 1)], needs, 100.0, **more)
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
    tallies = store.rows("SELECT total, succeeded, failed, cancelled, unneeded FROM sets")
    assert tallies == [(30, 0, 0, 0, 0)]
    store.close()


# ---- the ends of jobs, and what they mean for others -----------------------------------------------


def test_the_fate_of_dependants_does_not_depend_on_the_order_of_ends(tmp_path: Path) -> None:
    """Of jobs that wait for a repair, a clean-up, or for what failed."""
    waits = {
        b"fix": (Dependency(AFTER_FAILED, ("good",)),),
        b"check": (Dependency(AFTER, ("fix",)),),
        b"report": (Dependency(AFTER, ("fix", "bad")),),
        b"both": (Dependency(AFTER, ("bad",)), Dependency(AFTER_FAILED, ("good",))),
        b"any": (Dependency(ANY, ("fix", "check")),),
        b"cleanup": (Dependency(AFTER_FAILED, ("report",)),),
        b"no cleanup": (Dependency(AFTER_FAILED, ("check",)),),
        b"good": (),
        b"bad": (),
    }
    fates = {}
    for number, (specs, ends) in enumerate(product((waits, dict(reversed(waits.items()))), ("good bad", "bad good"))):
        store = Store(str(tmp_path / f"{number}.db"), create=True)
        jobs = [
            JobSpec(text, text, 1, 1, Attributes(name=text.decode().replace(" ", "-"), after=after))
            for text, after in specs.items()
        ]
        submit(store, *jobs)
        ids = {job.name: job.id for job in job_table.jobs(store)}
        for name in ends.split():
            transitions.move(store, ids[name], JobEvent.STARTED)
            transitions.move(store, ids[name], JobEvent.SUCCEEDED if name == "good" else JobEvent.FAILED)
        fates[number] = {job.name: (job.state.value, job.cause, job.blocked) for job in job_table.jobs(store)}
        store.close()
    stopped, spare = ("cancelled", STOPPED, True), ("cancelled", SPARE, True)
    expected = {
        **{"fix": spare, "check": spare, "report": stopped, "both": stopped, "any": spare},
        **{"cleanup": ("queued", "", False), "no-cleanup": spare},
        **{"good": ("succeeded", "", False), "bad": ("failed", "", False)},
    }
    assert list(fates.values()) == [expected] * 4


def test_what_a_person_cancels_for_good_no_longer_counts_as_failed(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "queue.db"), create=True)
    cleanup = line(b"cleanup")._replace(
        attributes=Attributes(name="cleanup", after=(Dependency(AFTER_FAILED, ("b",)),))
    )
    submit(store, line(b"one", name="a"), line(b"two", name="b", after="a"), cleanup)
    job_table.cancel(store, 1, 101.0)
    assert (job_table.get(store, 3).state, job_table.get(store, 3).blocked) == (QUEUED, False)
    job_table.cancel(store, 2, 102.0)
    assert (job_table.get(store, 3).state, job_table.get(store, 3).cause) == (CANCELLED, SPARE)
    assert store.rows("SELECT failed, cancelled, unneeded FROM sets ORDER BY id") == [(0, 1, 0), (0, 1, 0)]
    store.close()
