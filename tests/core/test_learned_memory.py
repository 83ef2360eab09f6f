"""What jobs with mem=auto count with: by the samples of their siblings, and after an out-of-memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.common.errors import GpuschedError
from gpusched.common.quantities import AUTO_MEMORY
from gpusched.core.model import JobRow, Usage
from gpusched.core.plan import learned_memory
from gpusched.core.plan.learned_memory import Learned, Share, Trace
from gpusched.core.plan.snapshot import MARGIN_BYTES, DeviceView
from tests.core.test_placement import card, placed, plan, why
from tests.support import build
from tests.support.build import GIB

MODEL = "NVIDIA L4"


def sibling(job_id: int = 1, *, tags: tuple[str, ...] = ("t", "u"), **more: Any) -> JobRow:
    return build.job(job_id, stated_mem_bytes=AUTO_MEMORY, tags=tags, **more)


def share(job: JobRow, *learned: Learned, stated: dict[str, int] | None = None, factor: float = 0.9) -> Share:
    return learned_memory.share(job, MODEL, learned, stated or {}, factor)


def traced(*used_gib: float) -> Trace:
    trace, peak = Trace(), 0
    for used in used_gib:
        peak = max(peak, round(used * GIB))
        trace = learned_memory.follow(trace, peak)
    return trace


# ---- settled ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used_gib", "is_settled"),
    [
        ([9, 9, 9, 9], True),
        ([9, 9, 9], False),
        ([0, 0, 0, 0, 0], False),  # it has not begun
        ([4, 9, 9, 9, 9], True),
        ([9, 9, 9, 9.5], False),
        ([9, 5, 9, 9.1], True),  # by a little, and back to what it had
        ([9, 9.1, 9.2, 9.3, 9.4, 9.5], False),  # a little each time is much
    ],
)
def test_memory_has_settled_when_it_stays_on_one_level(used_gib: list[float], is_settled: bool) -> None:
    assert learned_memory.is_settled(traced(*used_gib), 3, ready=None) is is_settled


def test_a_job_that_says_when_it_is_ready_is_believed() -> None:
    assert learned_memory.is_settled(traced(9), 3, ready=True)
    assert not learned_memory.is_settled(traced(9, 9, 9, 9, 9), 3, ready=False)
    assert not learned_memory.is_settled(traced(0), 3, ready=True)  # nothing was seen of it


@pytest.mark.parametrize(
    ("usage", "ready", "found"),
    [
        (Usage(peak_device_bytes=9), True, (9, "process")),
        (Usage(peak_device_bytes=0), True, (256 << 20, "least")),
        (Usage(peak_device_bytes=0, by_report=True), True, (256 << 20, "least")),
        (Usage(peak_device_bytes=0, by_device=True), True, (0, "device")),  # its processes cannot be told apart
        (Usage(), True, (0, "process")),  # never measured
        (Usage(peak_device_bytes=0), None, (0, "process")),  # it may not have begun
        (Usage(peak_device_bytes=0), False, (0, "process")),
    ],
)
def test_a_job_that_is_ready_without_any_memory_counts_with_a_little(
    usage: Usage, ready: bool | None, found: tuple[int, str]
) -> None:
    assert learned_memory.peak_of(usage, ready=ready) == found


# ---- what is learned -------------------------------------------------------------------------------


def test_the_largest_peak_counts_with_its_source() -> None:
    known = learned_memory.note_peak(Learned("t", MODEL), 9 * GIB, "process")
    assert known == Learned("t", MODEL, 9 * GIB, "process")
    assert learned_memory.note_peak(known, 8 * GIB, "report") == known
    later = learned_memory.note_peak(known, 10 * GIB, "report", is_whole=True)
    assert later == Learned("t", MODEL, 10 * GIB, "report", is_whole=True)
    assert not learned_memory.note_peak(Learned("t", MODEL), 0, "", is_whole=True).is_whole  # it was too quick


def test_each_tag_and_model_is_kept_apart() -> None:
    known = learned_memory.keep((), Learned("t", MODEL, GIB))
    known = learned_memory.keep(known, Learned("t", "NVIDIA A100", 2 * GIB))
    known = learned_memory.keep(known, Learned("t", MODEL, 3 * GIB))
    assert [each.peak_bytes for each in known] == [2 * GIB, 3 * GIB]
    assert learned_memory.find(known, "t", MODEL).peak_bytes == 3 * GIB
    assert learned_memory.find(known, "u", MODEL) == Learned("u", MODEL)


def test_each_out_of_memory_takes_one_job_off() -> None:
    known = Learned("t", MODEL, 9 * GIB)
    for jobs, most in [(4, 3), (4, 3), (3, 2), (2, 1), (2, 1)]:  # the second was beside as many as the first
        known = learned_memory.note_out_of_memory(known, jobs)
        assert known.jobs_max == most


# ---- what a job counts with ------------------------------------------------------------------------


def test_a_job_is_alone_without_a_tag_or_while_nothing_is_known() -> None:
    known = Learned("t", MODEL, 9 * GIB)
    assert share(sibling(tags=()), known) == Share(0)
    assert share(sibling(tags=("u", "t")), known).budget_bytes == 0  # the first tag counts
    assert share(sibling(), replace(known, gpu_model="NVIDIA A100")).budget_bytes == 0
    assert share(build.job(mem_gib=3, tags=("t",)), known) == Share(3 * GIB)
    assert sibling(gpus=0).sibling_tag == ""


@pytest.mark.parametrize(("factor", "budget_gib"), [(0.9, 10), (0.5, 18), (1.0, 9)])
def test_the_budget_is_the_peak_and_a_reserve(factor: float, budget_gib: float) -> None:
    found = share(sibling(), Learned("t", MODEL, 9 * GIB), factor=factor)
    assert found == Share(round(budget_gib * GIB), 0, is_known=False)


def test_it_joins_one_at_a_time_until_a_sibling_was_seen_to_its_end() -> None:
    known = Learned("t", MODEL, 9 * GIB)
    assert share(sibling(), known).running_bytes(is_settled=False) == 0
    assert share(sibling(), known).running_bytes(is_settled=True) == 10 * GIB
    assert share(sibling(), replace(known, is_whole=True)).running_bytes(is_settled=False) == 10 * GIB


def test_what_a_person_has_set_counts_more() -> None:
    known = Learned("t", MODEL, 9 * GIB, jobs_max=1)
    assert share(sibling(), known).budget_bytes == 0
    assert share(sibling(), known, stated={"t": 7 * GIB}) == Share(7 * GIB)


@pytest.mark.parametrize("more", [{"alone": True}, {"above_bytes": 24 * GIB}, {"losses": 3}])
def test_some_siblings_share_nothing(more: dict[str, Any]) -> None:
    assert share(sibling(**more), Learned("t", MODEL, 9 * GIB), stated={"t": GIB}) == Share(0)


# ---- where it goes ---------------------------------------------------------------------------------

KNOWN = Learned("t", MODEL, 9 * GIB, "process")
WHOLE = replace(KNOWN, peak_bytes=round(4.5 * GIB), is_whole=True)


def learning(view: DeviceView) -> DeviceView:
    """The card, on which the memory of the first job has not settled."""
    first, *others = view.residents
    return replace(view, residents=(replace(first, budget_bytes=0, is_learning=True), *others))


def test_nobody_joins_a_sibling_whose_memory_has_not_settled() -> None:
    found = plan([learning(card(0, 10))], [sibling(1), build.job(2, mem_gib=1)], learned=(KNOWN,))
    assert placed(found) == {}
    text = "waits until the memory of job 0 has settled (mem=auto)"
    assert why(found) == ("devices", f"waits for a GPU (GPU 0: {text})")
    assert why(found, 2)[1] == f"waits for a GPU with 1024 MiB (GPU 0: {text})"


def test_the_first_ones_have_each_a_gpu_alone() -> None:
    found = plan([card(0, 5), card(1), card(2)], [sibling(1), sibling(2), sibling(3)])
    assert placed(found) == {1: "1", 2: "2"}
    found = plan([card(0, 10)], [sibling(1), sibling(2)], learned=(KNOWN,))
    assert placed(found) == {1: "0"}
    assert "0 of 10240 MiB left beside 2 jobs" in why(found, 2)[1]
    found = plan([card(0, 5)], [sibling(1), sibling(2), sibling(3)], learned=(WHOLE,))
    assert placed(found) == {1: "0", 2: "0", 3: "0"}


def test_one_job_less_shares_a_gpu_after_an_out_of_memory() -> None:
    found = plan([card(0, 5, 5)], [sibling(1)], learned=(replace(WHOLE, jobs_max=2),))
    assert why(found)[1] == "waits for a GPU (GPU 0: shared by 2 jobs (since an out-of-memory: mem=auto))"
    assert placed(plan([card(0, 5, 5)], [build.job(1, mem_gib=5)], learned=(replace(WHOLE, jobs_max=2),))) == {1: "0"}


def test_a_budget_that_no_card_has_room_for_keeps_no_job_from_an_idle_one() -> None:
    known = replace(WHOLE, peak_bytes=23 * GIB)
    found = plan([card(0), card(1, 5)], [sibling(1), sibling(2)], learned=(known,))
    assert placed(found) == {1: "0"}
    assert "of 26168 MiB left beside 1 job" in why(found, 2)[1]


def test_a_job_that_has_to_be_alone_keeps_no_sibling_from_joining() -> None:
    found = plan([card(0, 5)], [sibling(1, losses=3), sibling(2)], learned=(WHOLE,))
    assert placed(found) == {2: "0"}


def test_it_is_another_model_that_tells_nothing() -> None:
    found = plan([card(0, 5, name="NVIDIA A100"), card(1, 5)], [sibling(1)], learned=(WHOLE,))
    assert placed(found) == {1: "1"}


# ---- kept and shown --------------------------------------------------------------------------------


def test_what_was_learned_is_read_as_it_was_stored() -> None:
    known = (replace(WHOLE, jobs_max=2), Learned("u", MODEL, GIB, "report"))
    assert learned_memory.from_json(learned_memory.to_json(known)) == known
    assert learned_memory.from_json(None) == ()
    with pytest.raises(GpuschedError, match="is damaged"):
        learned_memory.from_json('[{"tag": 3, "peak": 1}]')


@pytest.mark.parametrize(
    ("job", "learned", "stated", "text"),
    [
        (sibling(tags=()), (KNOWN,), {}, "mem=auto without a tag: it has its GPU alone"),
        (sibling(), (), {}, "is not known yet: the first has its GPU alone until it has settled"),
        (sibling(), (KNOWN,), {"t": 7 * GIB}, "the jobs tagged t count with 7168 MiB: gpusched set mem.t"),
        (sibling(), (KNOWN,), {}, "9216 MiB at most (by process) on NVIDIA L4: they count with 10240 MiB"),
        (sibling(), (replace(KNOWN, source="report"),), {}, "9216 MiB at most (by their own report) on"),
        (sibling(), (Learned("t", MODEL, 1 << 28, "least"),), {}, "256 MiB at most (ready without any: the least that"),
        (sibling(), (replace(KNOWN, jobs_max=2),), {}, "with 10240 MiB; at most 2 a GPU, since an out-of-memory"),
    ],
)
def test_what_is_known_can_be_read(
    job: JobRow, learned: tuple[Learned, ...], stated: dict[str, int], text: str
) -> None:
    (line,) = learned_memory.describe(job, learned, stated, 0.9)
    assert text in line


# ---- any cards -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 2.0, 5.0, 8.0]), max_size=3), min_size=1, max_size=4),
    st.sampled_from([0.0, 1.5, 4.5, 9.0, 23.0]),
    st.booleans(),
    st.integers(0, 4),
    st.integers(1, 8),
)
def test_no_card_gets_more_than_it_has(
    budgets: list[list[float]], peak_gib: float, is_whole: bool, jobs_max: int, waiting: int
) -> None:
    known = Learned("t", MODEL, round(peak_gib * GIB), "process", is_whole and peak_gib > 0, jobs_max)
    cards = [card(n, *each, name=MODEL) for n, each in enumerate(budgets)]
    found = plan(cards, [sibling(n) for n in range(1000, 1000 + waiting)], learned=(known,))
    new = Counter(placed(found).values())
    counted = learned_memory.share(sibling(), MODEL, (known,), {}, 0.9)
    for n, residents in enumerate(budgets):
        joined = new[str(n)]
        if len(residents) + joined > 1 and joined:
            assert counted.budget_bytes and all(residents)
            assert sum(residents) * GIB + joined * counted.budget_bytes + MARGIN_BYTES <= 24 * GIB
            assert len(residents) + joined <= counted.most(4)
            assert joined == 1 or is_whole
