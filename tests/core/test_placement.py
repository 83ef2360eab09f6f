"""Which devices a job gets: shared ones, groups of them, and those that are kept for a job that was passed for long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.core.model import MIB, Attempt, AttemptFact, DeviceProcess, JobRow, Sample
from gpusched.core.plan.availability import Availability, DeviceState
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import (
    MARGIN_BYTES,
    Claim,
    DeviceView,
    Limits,
    Look,
    Plan,
    Release,
    Resident,
    Snapshot,
    Start,
)
from tests.support import build
from tests.support.build import GIB

NOW = 1000.0
CHECKS = 3
MARGIN_GIB = MARGIN_BYTES / GIB
LATE = NOW - 600.0  # so long others may pass


def card(
    n: int,
    *budgets_gib: float,
    total_gib: float = 24,
    foreign_mib: int | None = 4,
    state: DeviceState | None = None,
    held: bool | None = None,
    count: int = CHECKS,
    read_s_ago: float = 0.0,
    settling_since: float | None = None,
    used_gib: Sequence[float] = (),
    **more: Any,
) -> DeviceView:
    """GPU n with jobs of these budgets on it (0: alone on it), held if it has any, and else free."""
    at = NOW - read_s_ago
    used: list[int | None] = [round(g * GIB) for g in used_gib] or [None] * len(budgets_gib)
    residents = tuple(
        Resident(100 * n + i, round(budget * GIB), use)
        for i, (budget, use) in enumerate(zip(budgets_gib, used, strict=True))
    )
    availability = Availability(
        f"GPU-{n}",
        count=count,
        state=state or (DeviceState.RUNNING if residents else DeviceState.FREE),
        why="runs a job of this queue" if residents else "free",
        sample=Sample(f"GPU-{n}", at),
        foreign_bytes=None if foreign_mib is None else foreign_mib * MIB,
        settling_since=settling_since,
    )
    return build.device_view(
        n,
        availability=availability,
        total_gib=total_gib,
        held=bool(residents) if held is None else held,
        residents=residents,
        **{"name": "NVIDIA L4", **more},
    )


def plan(devices: Sequence[DeviceView], waiting: Sequence[JobRow], limits: Limits | None = None, **more: Any) -> Plan:
    """The residents of the devices are what is open, unless other attempts are given."""
    on: dict[int, list[DeviceView]] = {}
    for device in devices:
        for resident in device.residents:
            on.setdefault(resident.job_id, []).append(device)
    attempts = [
        build.attempt(job, *(d.uuid for d in found), mem_bytes=found[0].residents[0].budget_bytes)
        for job, found in on.items()
    ]
    snapshot = Snapshot(NOW, limits or Limits(8), tuple(devices), tuple(waiting), tuple(attempts), max_checks=CHECKS)
    return make_plan(replace(snapshot, **more))


def needs(job_id: int, mem_gib: float = 0, **more: Any) -> JobRow:
    return build.job(job_id, mem_gib=mem_gib, **more)


def placed(found: Plan) -> dict[int, str]:
    """Where each job goes, by the numbers of its devices: "3" or "0 2"; claimed and started alike."""
    actions = [action for action in found.actions if isinstance(action, (Start, Claim))]
    return {a.job_id: " ".join(uuid.removeprefix("GPU-") for uuid in a.devices) for a in actions}


def why(found: Plan, job_id: int = 1) -> tuple[str, str]:
    reason = found.reasons[job_id]
    return reason.kind, reason.text


# ---- sharing ---------------------------------------------------------------------------------------


def test_a_job_with_a_budget_joins_a_device_of_ours() -> None:
    found = plan([card(0, 10), card(1)], [needs(1, 8)])
    assert found.actions == (Start(1, ("GPU-0",)),)


def test_the_margin_is_for_nobody() -> None:
    """10 GiB and 4 MiB are in use: of 24 GiB less the margin so much is left."""
    left = 24 - 10 - 4 / 1024 - MARGIN_GIB
    assert placed(plan([card(0, 10)], [needs(1, left)])) == {1: "0"}
    found = plan([card(0, 10)], [needs(1, left + 1 / 1024)])
    assert why(found) == ("devices", "waits for a GPU with 13821 MiB (GPU 0: 13820 MiB left beside 1 job)")
    assert placed(plan([card(0)], [needs(1, left + 10)])) == {1: "0"}
    found = plan([card(0)], [needs(1, 24)])
    assert why(found)[1] == "waits in vain: wants 24576 MiB on a GPU, and a GPU here can give 24064 at most"


def test_the_memory_of_others_counts() -> None:
    devices = [card(0, 10, foreign_mib=400)]
    assert placed(plan(devices, [needs(1, 13)])) == {1: "0"}
    assert placed(plan(devices, [needs(1, 13.2)])) == {}


def test_a_budget_counts_from_the_launch_on_and_real_use_if_it_is_more() -> None:
    assert placed(plan([card(0, 10, used_gib=[0])], [needs(1, 12)])) == {1: "0"}
    assert placed(plan([card(0, 10, used_gib=[0])], [needs(1, 14)])) == {}
    over = plan([card(0, 10, used_gib=[15])], [needs(1, 12)])
    assert why(over)[1] == "waits for a GPU with 12288 MiB (GPU 0: 8700 MiB left beside 1 job)"
    assert placed(plan([card(0, 10, used_gib=[15])], [needs(1, 8)])) == {1: "0"}


def test_more_in_use_than_the_board_has_leaves_nothing() -> None:
    found = plan([card(0, 10, 10, used_gib=[12, 12])], [needs(1, 1)])
    assert why(found)[1] == "waits for a GPU with 1024 MiB (GPU 0: 0 MiB left beside 2 jobs)"


def test_jobs_of_one_plan_share_what_is_left() -> None:
    found = plan([card(0, 10)], [needs(1, 5), needs(2, 5), needs(3, 5)])
    assert placed(found) == {1: "0", 2: "0"}
    assert why(found, 3)[1] == "waits for a GPU with 5120 MiB (GPU 0: 3580 MiB left beside 3 jobs)"


def test_newcomers_wait_for_the_claim_and_the_look_of_the_first() -> None:
    found = plan([card(0)], [needs(1, 5), needs(2, 5)])
    assert found.actions == (Claim(1, ("GPU-0",)),)
    assert why(found, 2) == ("look", "last check of GPU 0 before the start")
    claimed = replace(card(0, held=True), looked=False)
    assert [reason.kind for reason in plan([claimed], [needs(1, 5), needs(2, 5)]).reasons.values()] == ["look"] * 2
    found = plan([card(0, held=True)], [needs(1, 5), needs(2, 5)])
    assert found.actions == (Start(1, ("GPU-0",)), Start(2, ("GPU-0",)))


def test_a_device_for_one_job_at_a_time_is_not_shared() -> None:
    """A MIG instance, or a board in exclusive-process mode: a second process would fail on it."""
    assert placed(plan([card(0, held=True, alone=True)], [needs(1, 4), needs(2, 4)])) == {1: "0"}
    found = plan([card(0, 4, alone=True)], [needs(1, 4)])
    assert placed(found) == {}
    assert "one job at a time" in why(found)[1]


def test_no_more_than_so_many_jobs_share_a_device() -> None:
    four = [needs(n, 1) for n in range(1, 5)]
    found = plan([card(0, 1)], four, Limits(8, jobs_per_gpu=3))
    assert placed(found) == {1: "0", 2: "0"}
    text = "waits for a GPU with 1024 MiB (GPU 0: shared by 3 jobs (--max-jobs-per-gpu))"
    assert why(found, 3) == ("devices", text)
    assert why(found, 4) == ("behind", f"behind job 3: {text}")
    found = plan([card(0, held=True)], four, Limits(8, jobs_per_gpu=1))
    assert placed(found) == {1: "0"}


def test_a_job_that_states_no_memory_has_its_device_alone() -> None:
    found = plan([card(0, 1)], [needs(1)])
    assert why(found) == ("devices", "waits for a GPU (GPU 0: runs a job of this queue)")
    found = plan([card(0, 0)], [needs(1, 1)])
    assert why(found)[1].endswith("(GPU 0: runs a job that shares it with none (it states no mem))")
    assert placed(plan([card(0), card(1)], [needs(1), needs(2, 1), needs(3, 1)])) == {1: "0", 2: "1"}
    assert placed(plan([card(0, held=True)], [needs(1, 1), needs(2)])) == {1: "0"}


def test_an_adopted_device_takes_no_newcomer() -> None:
    found = plan([card(0, 5, held=False), card(1, state=DeviceState.BUSY)], [needs(1, 1)])
    assert found.actions == ()
    assert "GPU 0: takes no other job until the jobs of an earlier dispatcher on it have ended" in why(found)[1]
    assert placed(plan([card(0, 5, held=False), card(1)], [needs(1, 1)])) == {1: "1"}


def test_joining_does_not_count_for_max_gpus() -> None:
    devices = [card(0, 5), card(1)]
    found = plan(devices, [needs(1, 5), needs(2, 20)], Limits(1))
    assert placed(found) == {1: "0"}
    assert why(found, 2) == ("max_gpus", "this queue holds 1 of the 1 GPUs that it may (--max-gpus)")


def test_a_job_with_several_devices_joins_some_and_claims_others() -> None:
    devices = [card(0, 5), card(1), card(2, 20)]
    found = plan(devices, [needs(1, 10, gpus=2)])
    assert found.actions == (Claim(1, ("GPU-1",)),)
    devices[1] = card(1, held=True)
    assert plan(devices, [needs(1, 10, gpus=2)]).actions == (Start(1, ("GPU-0", "GPU-1")),)
    assert plan(devices, [needs(1, 10, gpus=2)], Limits(2)).reasons[1].kind == "max_gpus"
    devices[2] = card(2, 4)
    assert plan(devices, [needs(1, 10, gpus=2)], Limits(2)).actions == (Release("GPU-1"), Start(1, ("GPU-0", "GPU-2")))


# ---- who may join ----------------------------------------------------------------------------------


def test_others_must_have_been_absent_for_as_many_polls_as_for_a_free_device() -> None:
    found = plan([card(0, 5, count=CHECKS - 1)], [needs(1, 1)])
    assert why(found)[1] == "waits for a GPU with 1024 MiB (GPU 0: takes no other job now: runs a job of this queue)"
    assert placed(plan([card(0, 5, count=CHECKS)], [needs(1, 1)])) == {1: "0"}


@pytest.mark.parametrize("closed", [{"foreign_mib": None}, {"settling_since": NOW - 1}, {"state": DeviceState.LOST}])
def test_nobody_joins_where_it_cannot_be_known_what_is_left(closed: dict[str, Any]) -> None:
    found = plan([card(0, 5, **closed)], [needs(1, 1)])
    assert found.actions == ()
    assert "takes no other job now" in why(found)[1]


def test_a_device_is_read_once_more_before_a_newcomer_starts() -> None:
    devices = [card(0, 5, read_s_ago=3), card(1, 5, read_s_ago=3), card(2, 5)]
    found = plan(devices, [needs(1, 10), needs(2, 10), needs(3, 10)])
    assert found.actions == (Look(("GPU-0", "GPU-1")), Start(3, ("GPU-2",)))
    assert why(found, 2) == ("look", "last check of GPU 1 before the start")
    assert plan([card(0, 5, read_s_ago=0.4)], [needs(1, 10)]).actions == (Start(1, ("GPU-0",)),)


def test_nothing_is_read_for_a_job_that_would_not_fit() -> None:
    assert plan([card(0, 20, read_s_ago=3)], [needs(1, 10)]).actions == ()


def test_a_part_that_waits_for_its_look_keeps_the_other_parts() -> None:
    devices = [card(0, 5, read_s_ago=3), card(1, held=True)]
    found = plan(devices, [needs(1, 10, gpus=2), needs(2, 20)])
    assert found.actions == (Look(("GPU-0",)),)
    assert why(found) == ("look", "last check of GPU 0 before the start")


# ---- strategies ------------------------------------------------------------------------------------

BOX = [card(0, 5, total_gib=80), card(1, 10), card(2), card(3, 2), card(4, 2, total_gib=80)]  # left: 74, 13, 23, 21, 77


@pytest.mark.parametrize(
    ("strategy", "where"),
    [
        ("fill-first", ["1", "1", "1", "3"]),  # the least that is left; at most four jobs
        ("round-robin", ["2", "0", "1", "3"]),  # an empty one, then those with the fewest jobs
        ("memory-aware", ["4", "4", "0", "4"]),  # the most that is left
    ],
)
def test_strategies_for_shared_devices(strategy: str, where: list[str]) -> None:
    found = plan(BOX, [needs(n, 2.5) for n in range(1, 5)], Limits(8, strategy=strategy))
    assert list(placed(found).values()) == where


@pytest.mark.parametrize(
    ("strategy", "where"), [("fill-first", "012"), ("round-robin", "012"), ("memory-aware", "120")]
)
def test_strategies_for_whole_devices(strategy: str, where: str) -> None:
    devices = [card(0), card(1, total_gib=80), card(2, total_gib=80)]
    found = plan(devices, [needs(n) for n in range(1, 4)], Limits(8, strategy=strategy))
    assert "".join(placed(found).values()) == where


def test_a_device_that_is_begun_is_the_smallest_that_will_do() -> None:
    devices = [card(0, total_gib=80), card(1), card(2, total_gib=40)]
    assert placed(plan(devices, [needs(1, 20)])) == {1: "1"}
    assert placed(plan(devices, [needs(1, 30)])) == {1: "2"}


def test_what_idle_boards_hold_does_not_upset_the_order_of_preference() -> None:
    devices = [card(3, foreign_mib=3), card(0, foreign_mib=14), card(1, foreign_mib=9)]
    assert placed(plan(devices, [needs(1, 20), needs(2, 20)])) == {1: "3", 2: "0"}


def test_a_model_may_be_asked_for() -> None:
    devices = [card(0, 4), card(1, 4, name="NVIDIA A100-SXM4-80GB", total_gib=80), card(2)]
    assert placed(plan(devices, [needs(1, 4, gpu_model="a100"), needs(2, 4)])) == {1: "1", 2: "0"}
    found = plan(devices, [needs(1, gpu_model="a100"), needs(2)])
    assert placed(found) == {2: "2"}
    text = "waits for a a100 GPU (GPU 0, GPU 2: is no a100, GPU 1: runs a job of this queue)"
    assert why(found) == ("devices", text)
    found = plan([devices[0]], [needs(1, 5, gpu_model="A100"), needs(2, 5, gpu_model="A100")])
    assert why(found) == why(found, 2) == ("never", "waits in vain: wants a GPU named A100, and there is none here")


def test_a_job_for_one_device_is_told_of_that_device_alone() -> None:
    found = plan([card(0, 4), card(1, 4)], [needs(1, gpu_model="GPU-1")])
    assert why(found) == ("devices", "waits for GPU 1 (runs a job of this queue)")
    found = plan([card(0), card(1, 20)], [needs(1, 8, gpu_model="GPU-1")])
    assert why(found)[1].startswith("waits for GPU 1 (") and "MiB left beside 1 job)" in why(found)[1]


# ---- groups ----------------------------------------------------------------------------------------


def grouped(groups: str, **more: Any) -> list[DeviceView]:
    """A free card for each letter, "-" for one that stands alone."""
    return [card(n, group="" if letter == "-" else letter, **more) for n, letter in enumerate(groups)]


@pytest.mark.parametrize(
    ("groups", "gpus", "where"),
    [
        ("abab", 2, "0 2"),
        ("abbb", 2, "1 2"),  # a has one only
        ("abbb", 1, "0"),
        ("-aab", 2, "1 2"),
        ("abab", 3, "0 1 2"),  # no group serves it whole
        ("aabbbb", 3, "2 3 4"),
        ("----", 2, "0 1"),
        ("aabb", 2, "0 1"),
    ],
)
def test_several_gpus_for_one_job_are_of_one_group_where_one_will_do(groups: str, gpus: int, where: str) -> None:
    assert placed(plan(grouped(groups), [build.job(1, gpus)])) == {1: where}


def test_a_group_counts_by_what_is_free_of_it() -> None:
    devices = grouped("aabb")
    devices[1] = card(1, 0, group="a")
    assert placed(plan(devices, [build.job(1, 2)])) == {1: "2 3"}


def test_shared_devices_of_one_group_are_preferred_too() -> None:
    devices = [card(0, 12, group="a"), card(1, 10, group="b"), card(2, 8, group="b"), card(3, 8, group="a")]
    assert placed(plan(devices, [needs(1, 8, gpus=2)])) == {1: "0 3"}
    assert placed(plan(devices, [needs(1, 12.5, gpus=2)])) == {1: "1 2"}


def test_a_device_to_avoid_is_not_taken_for_the_sake_of_its_group() -> None:
    job = build.job(1, 2, avoid=frozenset({"GPU-1"}))
    assert placed(plan(grouped("aabb"), [job])) == {1: "2 3"}
    assert placed(plan(grouped("aab"), [job])) == {1: "0 2"}
    assert placed(plan(grouped("aa"), [job])) == {1: "0 1"}


# ---- tags ------------------------------------------------------------------------------------------


def tagged(job_id: int, *devices: int, tag: str = "t") -> Attempt:
    return build.attempt(job_id, *devices, tags=(tag,))


def test_a_tag_has_a_limit_of_its_own() -> None:
    limits = Limits(8, tag_gpus={"t": 2})
    waiting = [needs(n, tags=("t",)) for n in (1, 2, 3)] + [needs(4, tags=("u",)), needs(5)]
    found = plan([card(n) for n in range(6)], waiting, limits)
    assert placed(found) == {1: "0", 2: "1", 4: "2", 5: "3"}
    assert why(found, 3) == ("tag", "2 of 2 GPUs for the tag t are in use (--tag-max-gpus t=N)")


def test_open_attempts_count_for_their_tags() -> None:
    limits = Limits(8, tag_gpus={"t": 2})
    devices = [card(0, 0), card(1, 0), card(2)]
    open_ones = (tagged(8, 0), tagged(9, 1, tag="u"))
    assert placed(plan(devices, [needs(1, tags=("t",))], limits, attempts=open_ones)) == {1: "2"}
    assert why(plan(devices, [needs(1, tags=("t",))], limits, attempts=(tagged(8, 0, 1),)))[0] == "tag"
    ended = replace(tagged(8, 0, 1), fact=AttemptFact.EXITED)
    assert placed(plan(devices, [needs(1, tags=("t",))], limits, attempts=(ended,))) == {1: "2"}


def test_a_job_may_join_its_tag_where_the_tag_is_already() -> None:
    limits = Limits(8, tag_gpus={"t": 1})
    devices = [card(0, 2), card(1, 4), card(2)]
    open_ones = (tagged(8, 0), tagged(9, 1, tag="u"))
    found = plan(devices, [needs(n, 5, tags=("t",)) for n in range(1, 6)], limits, attempts=open_ones)
    assert placed(found) == {1: "0", 2: "0", 3: "0"}
    assert why(found, 4) == ("tag", "1 of 1 GPUs for the tag t are in use (--tag-max-gpus t=N)")


def test_joining_devices_counts_for_the_tag_one_by_one() -> None:
    limits = Limits(8, tag_gpus={"t": 1})
    both = needs(1, 5, gpus=2, tags=("t",))
    assert why(plan([card(0, 2), card(1, 2)], [both], limits))[0] == "never"
    assert placed(plan([card(0, 2), card(1, 2)], [both], replace(limits, tag_gpus={"t": 2}))) == {1: "0 1"}


def test_devices_that_the_limits_allow_are_found_behind_better_ones() -> None:
    """Fill-first would begin with the fuller GPU 0, which is new to the tag."""
    limits = Limits(8, tag_gpus={"t": 2})
    devices = [card(0, 12), card(1, 2), card(2, 2)]
    found = plan(devices, [needs(1, 5, gpus=2, tags=("t",))], limits, attempts=(tagged(8, 1), tagged(9, 2)))
    assert placed(found) == {1: "1 2"}


def test_the_strictest_of_several_tags_counts() -> None:
    limits = Limits(8, tag_gpus={"t": 2, "u": 1})
    found = plan([card(n) for n in range(4)], [needs(n, tags=("t", "u")) for n in (1, 2)], limits)
    assert placed(found) == {1: "0"}
    assert why(found, 2) == ("tag", "1 of 1 GPUs for the tag u are in use (--tag-max-gpus u=N)")


def test_nothing_is_kept_for_a_job_that_its_tag_holds_up() -> None:
    limits = Limits(8, tag_gpus={"t": 1})
    attempts = (tagged(8, 0), tagged(9, 1, tag="u"))
    found = plan(
        [card(0, 0), card(1, 0)], [needs(1, tags=("t",)), needs(2)], limits, attempts=attempts, waited_since={1: LATE}
    )
    assert (why(found)[0], found.passed) == ("tag", ())
    assert "kept" not in why(found, 2)[1]


# ---- passing ---------------------------------------------------------------------------------------


def test_smaller_jobs_pass_and_the_plan_says_whom() -> None:
    devices = [card(0, 0), card(1), card(2)]
    found = plan(devices, [build.job(1, 3), build.job(2), build.job(3, 2), build.job(4, gpus=0)])
    assert placed(found) == {2: "1", 4: ""}
    assert found.passed == (1,)
    assert plan(devices, [build.job(1, 3), build.job(4, gpus=0)]).passed == ()


def test_after_so_long_devices_are_kept_for_it_but_not_claimed() -> None:
    devices = [card(0, 0), card(1, held=True), card(2)]
    waiting = [build.job(1, 3), build.job(2), build.job(3, mem_bytes=GIB), build.job(4, gpus=0)]
    assert placed(plan(devices, waiting, waited_since={1: LATE + 1})) == {2: "1", 3: "2", 4: ""}
    found = plan(devices, waiting, waited_since={1: LATE})
    assert found.actions == (Release("GPU-1"), Start(4, ()))
    free = "GPU 0: runs a job of this queue, GPU 1, GPU 2: free"
    assert why(found) == ("devices", f"waits for 3 GPUs, has 2 ({free}); kept for it: GPU 1, GPU 2, GPU 0")
    assert why(found, 2) == ("devices", "waits for a GPU; GPU 1 is kept for job 1, which has waited 10 min for 3 GPUs")
    assert why(found, 3)[1].startswith("waits for a GPU with 1024 MiB; GPU 1 is kept for job 1")


def test_only_as_many_are_kept_as_it_needs_those_that_are_soonest_free() -> None:
    devices = [card(0, state=DeviceState.BUSY), card(1, 0), card(2, 0), card(3)]
    found = plan(devices, [build.job(1, 2), build.job(2)], waited_since={1: LATE})
    assert why(found)[1].endswith("kept for it: GPU 3, GPU 1")
    devices[0] = card(0)
    found = plan([*devices, card(4)], [build.job(1, 4), build.job(2), build.job(3)], waited_since={1: LATE})
    assert (placed(found), why(found)[1].endswith("kept for it: GPU 0, GPU 3, GPU 4, GPU 1")) == ({}, True)


def test_nobody_joins_a_device_that_is_kept() -> None:
    devices = [card(0, 5), card(1, 5)]
    found = plan(devices, [needs(1, 20), needs(2, 5)], waited_since={1: LATE})
    assert why(found)[1].endswith("kept for it: GPU 0")
    assert placed(found) == {2: "1"}


def test_what_is_kept_counts_for_max_gpus() -> None:
    devices = [card(0, 0), card(1), card(2), card(3)]
    found = plan(devices, [build.job(1, 2), build.job(2)], Limits(2), waited_since={1: LATE})
    assert placed(found) == {}
    assert why(found) == (
        "max_gpus",
        "this queue holds 1 of the 2 GPUs that it may (--max-gpus); kept for it: GPU 1, GPU 2",
    )
    text = "waits for a GPU within --max-gpus; GPU 1 is kept for job 1, which has waited 10 min for 2 GPUs"
    assert why(found, 2) == ("devices", text)


def test_a_job_before_it_gets_what_is_kept() -> None:
    found = plan([card(0, 0), card(1)], [build.job(5), build.job(1, 2), build.job(2)], waited_since={1: LATE})
    assert placed(found) == {5: "1"}


def test_nothing_is_kept_for_a_job_that_it_would_not_help() -> None:
    devices = [card(0), card(1), card(2, state=DeviceState.LOST)]
    found = plan(devices, [build.job(1, 3), build.job(2)], waited_since={1: LATE})
    assert placed(found) == {2: "0"}
    found = plan(devices, [build.job(1, 2), build.job(2)], Limits(1), waited_since={1: LATE})
    assert placed(found) == {2: "0"}
    assert why(found)[0] == "never"


def test_a_free_device_that_does_not_serve_a_job_is_not_kept_for_it() -> None:
    """The memory of others on it is little enough for a free device, and too much for this job."""
    devices = [card(0, foreign_mib=400), card(1, 0, foreign_mib=0)]
    found = plan(devices, [needs(1, 23.4), needs(2, 5)], waited_since={1: LATE})
    assert (placed(found), why(found)[1].endswith("kept for it: GPU 1")) == ({2: "0"}, True)
    job = build.job(1, above_bytes=24 * GIB - 4 * MIB)
    found = plan([card(0), card(1, 0, total_gib=80)], [job, build.job(2)], waited_since={1: LATE})
    assert (placed(found), why(found)[1].endswith("kept for it: GPU 1")) == ({2: "0"}, True)


def test_the_next_one_has_its_turn_while_the_first_waits_for_others() -> None:
    """Else a colleague on the only A100 could starve every larger job behind."""
    devices = [card(0, state=DeviceState.BUSY, name="A100"), card(1, 0), card(2)]
    waiting = [build.job(1, gpu_model="A100"), build.job(2, 2), build.job(3)]
    found = plan(devices, waiting, Limits(2), waited_since={1: LATE, 2: LATE})
    assert placed(found) == {}
    assert why(found)[1].endswith("kept for it: GPU 0")
    assert why(found, 2)[1].endswith("kept for it: GPU 2, GPU 1")
    assert placed(plan(devices, waiting, Limits(2), waited_since={1: LATE})) == {3: "2"}


def test_one_after_the_other_where_this_queue_alone_decides() -> None:
    devices = [card(0, 0), card(1, 0), card(2)]
    found = plan(devices, [build.job(1, 2), build.job(2, 3), build.job(3)], waited_since={1: LATE, 2: LATE})
    assert why(found)[1].endswith("kept for it: GPU 2, GPU 0")
    assert "kept for it" not in why(found, 2)[1]


# ---- a small box that lives ------------------------------------------------------------------------


@dataclass
class Box:
    """Cards on which jobs run for a while, driven by make_plan alone. Checks after each step that all is well."""

    totals_gib: Sequence[int]
    limits: Limits
    lasts_s: Callable[[JobRow], float]
    now: float = 0.0
    waiting: list[JobRow] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    running: dict[int, tuple[JobRow, tuple[str, ...], float]] = field(default_factory=dict)  # with the end
    started_at: dict[int, float] = field(default_factory=dict)
    waited_since: dict[int, float] = field(default_factory=dict)

    def on(self, uuid: str) -> list[JobRow]:
        return [job for job, devices, _ in self.running.values() if uuid in devices]

    def snapshot(self) -> Snapshot:
        views = []
        for n, total in enumerate(self.totals_gib):
            jobs = self.on(f"GPU-{n}")
            view = card(n, *(job.mem_bytes / GIB for job in jobs), total_gib=total, held=f"GPU-{n}" in self.held)
            sample = Sample(view.uuid, self.now)
            views.append(replace(view, availability=replace(view.availability, sample=sample)))
        attempts = tuple(
            build.attempt(job.id, *devices, mem_bytes=job.mem_bytes, tags=job.tags)
            for job, devices, _ in self.running.values()
        )
        return Snapshot(
            self.now,
            self.limits,
            tuple(views),
            tuple(self.waiting),
            attempts,
            max_checks=CHECKS,
            waited_since=self.waited_since,
        )

    def step(self, seconds: float) -> None:
        """Start what can start, then let time go by."""
        while True:
            found = make_plan(self.snapshot())
            self.waited_since = {**dict.fromkeys(found.passed, self.now), **self.waited_since}
            if not any(isinstance(action, (Start, Claim)) for action in found.actions):
                break
            for action in found.actions:
                if isinstance(action, Release):
                    self.held.discard(action.uuid)
                elif isinstance(action, Claim):
                    self.held.update(action.devices)
                elif isinstance(action, Start):
                    job = next(job for job in self.waiting if job.id == action.job_id)
                    self.waiting.remove(job)
                    self.running[job.id] = (job, action.devices, self.now + self.lasts_s(job))
                    self.started_at[job.id] = self.now
            self.check()
        self.now += seconds
        self.running = {n: run for n, run in self.running.items() if run[2] > self.now}

    def check(self) -> None:
        busy = {uuid for _, devices, _ in self.running.values() for uuid in devices}
        assert len(busy) <= self.limits.max_gpus and busy <= self.held
        for uuid in busy:
            jobs = self.on(uuid)
            total = self.totals_gib[int(uuid[4:])] * GIB
            if len(jobs) > 1:
                assert all(job.mem_bytes for job in jobs)
                assert len(jobs) <= self.limits.jobs_per_gpu
            if jobs[0].mem_bytes:
                assert sum(job.mem_bytes for job in jobs) + MARGIN_BYTES <= total
        for tag, limit in self.limits.tag_gpus.items():
            assert len({u for job, devices, _ in self.running.values() if tag in job.tags for u in devices}) <= limit


@pytest.mark.parametrize("mem_gib", [0, 10])
def test_a_job_for_all_gpus_starts_in_the_end(mem_gib: int) -> None:
    """Small jobs without end, of which one always ends while another one still runs."""
    small = iter(range(2, 1_000_000))
    box = Box([24] * 8, Limits(8, max_bypass_s=600), lambda job: 10_000 if job.id == 1 else 250 + job.id * 37 % 90)
    box.waiting = [needs(next(small), mem_gib) for _ in range(20)]
    box.step(100)
    box.waiting.insert(0, build.job(1, 8))
    for _ in range(30):
        box.waiting += [needs(next(small), mem_gib) for _ in range(20 - len(box.waiting))]
        box.step(50)
    assert box.started_at[1] <= 100 + 50 + 600 + 340 + 50
    assert any(100 < at < box.started_at[1] for n, at in box.started_at.items() if n != 1)


def test_several_large_jobs_start_one_after_the_other() -> None:
    small = iter(range(100, 1_000_000))
    box = Box([24] * 4, Limits(4), lambda job: 300)
    box.waiting = [needs(next(small)) for _ in range(8)]
    box.step(10)
    box.waiting = [build.job(1, 4), build.job(2, 3), build.job(3, 4), *box.waiting]
    for _ in range(100):
        box.waiting += [needs(next(small)) for _ in range(12 - len(box.waiting))]
        box.step(30)
    assert 0 < box.started_at[1] < box.started_at[2] < box.started_at[3] <= 10 + 600 + 3 * 330


def job_lists() -> st.SearchStrategy[list[JobRow]]:
    job = st.builds(
        build.job,
        gpus=st.sampled_from([1, 1, 1, 2, 3]),
        mem_bytes=st.sampled_from([0, 2 * GIB, 5 * GIB, 11 * GIB, 20 * GIB]),
        tags=st.sampled_from([(), (), ("t",), ("u",), ("t", "u")]),
        avoid=st.frozensets(st.sampled_from(["GPU-0", "GPU-1"])),
    )
    return st.lists(job, max_size=14).map(number)


def number(jobs: Iterable[JobRow]) -> list[JobRow]:
    return [replace(job, id=n) for n, job in enumerate(jobs, 1)]


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    job_lists(),
    st.lists(st.sampled_from([24, 24, 40, 80]), min_size=3, max_size=5),
    st.integers(3, 5),
    st.integers(1, 4),
    st.sampled_from(["fill-first", "round-robin", "memory-aware"]),
    st.sampled_from([0.0, 50.0, 600.0]),
)
def test_every_job_runs_within_all_limits(
    jobs: list[JobRow], totals: list[int], max_gpus: int, sharing: int, strategy: str, bypass_s: float
) -> None:
    limits = Limits(max_gpus, 2, sharing, {"t": 3, "u": 3}, strategy, bypass_s)
    box = Box(totals, limits, lambda job: 10.0 + job.id * 7 % 60, waiting=list(jobs))
    for _ in range(150):
        box.step(10)
    assert not box.waiting and not box.running
    assert len(box.started_at) == len(jobs)


# ---- alone=yes -------------------------------------------------------------------------------------

IDLER = DeviceProcess(5, 90 * MIB, "C", "bo", "python", 0.0)


def shown(n: int, *listed: DeviceProcess, hidden: bool = False, **more: Any) -> DeviceView:
    """A card that lists these processes."""
    view = card(n, **more)
    found = Sample(view.uuid, NOW, processes=None if hidden else listed)
    return replace(view, availability=replace(view.availability, sample=found))


def plan_of(*devices: DeviceView, waiting: Sequence[JobRow]) -> Plan:
    return make_plan(Snapshot(now=NOW, limits=Limits(), devices=devices, waiting=tuple(waiting), max_checks=CHECKS))


def test_a_job_that_wants_to_be_alone_passes_over_gpus_with_any_process() -> None:
    first, second = build.job(1, alone=True), build.job(2)
    plan = plan_of(shown(0, IDLER), shown(1), waiting=[first, second])
    assert plan.actions == (Claim(1, ("GPU-1",)), Claim(2, ("GPU-0",)))


def test_a_job_that_wants_to_be_alone_waits_and_says_for_whom() -> None:
    desktop = replace(IDLER, kind="G", program="Xorg")
    plan = plan_of(shown(0, IDLER), shown(1, desktop), shown(2, hidden=True), waiting=[build.job(1, alone=True)])
    assert plan.actions == ()
    assert plan.reasons[1].text == (
        "waits for a GPU without processes of others (GPU 0: bo's python (pid 5) is on it (alone=yes), "
        "GPU 1: bo's Xorg (pid 5) is on it (alone=yes), "
        "GPU 2: its processes cannot be listed, which alone=yes needs)"
    )


def test_who_comes_before_the_last_look_keeps_a_job_that_wants_to_be_alone_from_starting() -> None:
    job = build.job(1, alone=True)
    assert plan_of(shown(0, held=True, looked=True), waiting=[job]).actions == (Start(1, ("GPU-0",)),)
    assert plan_of(shown(0, IDLER, held=True, looked=True), waiting=[job]).actions == (Release("GPU-0"),)


def test_a_job_that_wants_to_be_alone_shares_with_no_job_of_ours() -> None:
    """Although it states its memory."""
    alone, other = build.job(1, mem_gib=2, alone=True), build.job(2, mem_gib=2)
    assert build.job(mem_gib=2, alone=True).budget_bytes == 0
    free, shared = shown(0, held=True, looked=True), card(0, 2)
    for device, waiting, started in ((free, [alone, other], [1]), (free, [other, alone], [2]), (shared, [alone], [])):
        actions = plan_of(device, waiting=waiting).actions
        assert [action.job_id for action in actions if isinstance(action, Start | Claim)] == started
        assert not any(isinstance(action, Look) for action in actions)
