"""What the jobs of a list wait for: what names nothing, and what waits for itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.core.jobs.readiness import JobIndex, ListedJob, UnknownReference, find_cycle
from gpusched.core.model import Attributes, Dependency, DependencyKind, JobSpec
from gpusched.lists.dependencies import check
from gpusched.lists.findings import Finding
from gpusched.lists.jobfile import parse


def found(text: str, *known: str) -> list[Finding]:
    jobs = parse(text.encode())
    assert not jobs.errors
    return check(jobs.specs, known=known)


def test_names_tags_and_ids_may_be_waited_for_whatever_the_order() -> None:
    assert not found("[after=b,t,12] x\n[name=b] y\n[tag=t] z\n[tag=t after-any=b] w\n")
    assert not found("x\ny\n")


def test_a_job_that_bears_the_tag_that_it_waits_for_waits_for_the_others() -> None:
    assert not found("#gpusched: tag=t\nx\ny\n[after=t] report\n")
    assert not found("[name=t] x\n[tag=t after=t] y\n[tag=t after=t] z\n")  # a name counts before a tag


def test_what_the_queue_has_may_be_waited_for() -> None:
    assert len(found("[after=prep] x\n")) == 1
    assert not found("[after=prep] x\n", "prep")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("x\n[gpus=1 after=train-1,prepp] y\n[name=train-1] z\n[name=prep] w\n", 2, "prepp; did you mean prep?"),
        ("#gpusched: after-ended=nowhere\nx\ny\n", 2, "no job has the name or the tag nowhere"),
        ("[after=b] x\n[name=b after=c] y\n[name=c after=b] z\n", 2, "b (line 2) -> c (line 3) -> b (line 2)"),
        ("[name=a after=a] x\n", 1, "wait for each other: a (line 1) -> a (line 1)"),
        ("[tag=t] w\n[tag=t after=t] x\n[tag=t after=t] y\n", 2, "line 2 -> line 3 -> line 2"),
        ("[tag=t after=t] x\n[tag=t after-any=b] y\n[name=b tag=t after=t] z", 1, "line 1 -> b (line 3) -> line 1"),
        ("[name=t tag=t after=t] x\n[tag=t] y\n", 1, "wait for each other: t (line 1) -> t (line 1)"),
        ("[name=a after=t] x\n[tag=t after=a] y\n[tag=t] z\n", 1, "a (line 1) -> line 2 -> a (line 1)"),
    ],
)
def test_what_can_never_come_true_is_placed(text: str, line: int, says: str) -> None:
    (finding,) = found(text)
    assert (finding.severity, finding.line) == ("error", line)
    assert says in finding.message


def test_many_jobs_of_one_tag_cost_no_more_than_they_are() -> None:
    text = "".join(f"[tag=a] x {n}\n" for n in range(3000)) + "".join(f"[tag=b after=a] y {n}\n" for n in range(3000))
    assert not found(text)
    assert len(found("".join(f"[after=none{n}] x\n" for n in range(3000)))) == 3000


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=14))
def test_a_circle_is_found_just_where_there_is_one(arrows: list[tuple[int, int]]) -> None:
    waits = {n: {b for a, b in arrows if a == n} for n in range(8)}
    specs = [
        JobSpec(
            b"x",
            b"x",
            n + 1,
            1,
            Attributes(
                name=f"j{n}",
                after=(Dependency(DependencyKind.ENDED, tuple(f"j{m}" for m in sorted(aims))),) if aims else (),
            ),
        )
        for n, aims in waits.items()
    ]
    reach = {n: set(aims) for n, aims in waits.items()}
    for _ in range(8):
        reach = {n: aims.union(*(reach[m] for m in aims)) for n, aims in reach.items()}
    assert bool(check(specs)) == any(n in aims for n, aims in reach.items())


@st.composite
def lists(draw: st.DrawFn) -> list[JobSpec]:
    words = ["a", "b", "c", "s", "t"]
    names = draw(st.lists(st.sampled_from(words), max_size=4, unique=True))
    specs = []
    for n in range(draw(st.integers(1, 6))):
        tags = tuple(draw(st.lists(st.sampled_from(words), max_size=2, unique=True)))
        refs = tuple(draw(st.lists(st.sampled_from(words), max_size=2, unique=True)))
        after = (Dependency(DependencyKind.ENDED, refs),) if refs else ()
        name = names[n] if n < len(names) else ""
        specs.append(JobSpec(b"x", b"x", n + 1, 1, Attributes(name=name, tags=tags, after=after)))
    return specs


@pytest.mark.slow
@settings(deadline=None, max_examples=500)
@given(lists())
def test_what_is_said_of_a_list_is_what_its_queue_does(specs: list[JobSpec]) -> None:
    directory = JobIndex(ListedJob(n, spec.attributes.name, spec.attributes.tags) for n, spec in enumerate(specs))
    try:
        upstream = {
            n: [up for _, ups in directory.resolve(n, spec.attributes.after) for up in ups]
            for n, spec in enumerate(specs)
        }
        refused = bool(find_cycle(upstream))
    except UnknownReference:
        refused = True
    assert bool(check(specs)) == refused
