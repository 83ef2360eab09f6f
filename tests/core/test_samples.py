"""Stretches of time: what a poll says of each GPU, and that merging them loses no second."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusched.core.model import MIB, DeviceProcess, Sample
from gpusched.core.plan.availability import Availability, DeviceState
from gpusched.core.plan.board import Board, BoardDevice
from gpusched.core.plan.snapshot import Limits, Reason, Resident
from gpusched.core.samples import GpuStretch, Stretch, count_waits, merge, stretch_of, thin
from tests.support import build

NOW = 1_760_000_000.0
BO = DeviceProcess(51, 3000 * MIB, "C", "bo", "python")


def gpu(
    state: DeviceState, why: str = "", *, use: float = 0.0, jobs: tuple[int, ...] = (), **more: object
) -> GpuStretch:
    """Return what a poll of ten seconds says of a GPU in this state."""
    sample = Sample("GPU-0", NOW, 4000 * MIB, 24 * build.GIB, more.pop("who", ()), use)  # type: ignore[arg-type]
    known = Availability("GPU-0", 3, state, why or state.value, NOW, sample, 4 * MIB)
    view = build.device_view(0, availability=known, refused=str(more.pop("refused", "")))
    view = replace(view, residents=tuple(Resident(job, 0, 2000 * MIB) for job in jobs))
    board = Board(NOW, 1, "", Limits(), 10, 500 * MIB, (BoardDevice(build.device(0), view),))
    return stretch_of(board, 10.0, str(more.pop("waits_for", ""))).gpus["GPU-0"]


def test_a_gpu_with_our_job() -> None:
    found = gpu(DeviceState.RUNNING, use=0.5, jobs=(3, 4))
    assert (found.ours_s, found.working_s, found.others_s, found.idle) == (10, 10, 0, {})
    assert found.jobs == {"3": [10, 2000], "4": [10, 2000]} and (found.used_mib, found.checks) == (4000, 3)
    assert gpu(DeviceState.RUNNING, use=0.0, jobs=(3,)).working_s == 0


def test_a_gpu_of_others_and_one_beside_ours() -> None:
    found = gpu(DeviceState.BUSY, "in use", who=(BO,))
    assert (found.others_s, found.who, found.idle) == (10, {"bo's python": 10}, {})
    beside = gpu(DeviceState.RUNNING, use=0.5, jobs=(3,), who=(BO,))
    assert (beside.ours_s, beside.others_s, beside.who) == (10, 0, {"bo's python": 10})
    claimed = gpu(DeviceState.FREE, refused="claimed by cy's gpusched")
    assert (claimed.others_s, claimed.who) == (10, {"cy's gpusched": 10})
    own = gpu(DeviceState.BUSY, refused="claimed by your gpusched for /q", who=(BO,))
    assert (own.elsewhere_s, own.others_s, own.idle) == (10, 0, {})


@pytest.mark.parametrize(
    ("state", "why", "waits_for", "reason"),
    [
        (DeviceState.FREE, "free", "", "free"),
        (DeviceState.FREE, "free", "memory", "free: memory"),
        (DeviceState.CHECKING, "free at 3 of 10 checks", "devices", "checking"),
        (DeviceState.SETTLING, "our job has just ended", "", "settling"),
        (DeviceState.LOST, "no longer in the box", "devices", "lost: no longer in the box"),
    ],
)
def test_why_a_gpu_is_idle(state: DeviceState, why: str, waits_for: str, reason: str) -> None:
    assert gpu(state, why, waits_for=waits_for).idle == {reason: 10}


def test_jobs_far_behind_wait_as_the_first_ones_do() -> None:
    first = [Reason("devices", "", "memory"), Reason("behind", "", "memory"), Reason("max_gpus", ""), Reason("tag", "")]
    waits = count_waits(first, 100, {"held": 2, "dependency": 0})
    assert waits == {"memory": 50, "max_gpus": 25, "tag": 25, "held": 2}
    assert count_waits([], 3, {}) == {}


ONES = st.builds(
    lambda use, job, who, why: GpuStretch(
        0, 100.0, use, use, use, 4.0, 3.0, 2.0, use, 1, {job: [4.0, use]}, {who: 2.0}, {why: 4.0}
    ),
    st.floats(0, 1),
    *(st.sampled_from("abcdefghij"),) * 3,
)


@given(st.lists(ONES, min_size=1, max_size=30), st.integers(1, 50))
def test_merging_loses_no_second(gpus: list[GpuStretch], fineness: int) -> None:
    polls = [
        Stretch(10.0 * n, 10.0 * n + 10, 10.0, {"queued": n}, {"tag": n}, {"g": each}) for n, each in enumerate(gpus)
    ]
    whole = reduce(merge, polls)
    assert (whole.began_at, whole.ended_at, whole.seconds) == (0, 10 * len(gpus), 10 * len(gpus))
    found = whole.gpus["g"]
    assert found.ours_s + found.others_s + sum(found.idle.values()) == pytest.approx(whole.seconds)
    assert len(found.idle) <= 6 and found.peak_mib == max(gpu.use or 0 for gpu in gpus)
    assert min(gpu.use or 0 for gpu in gpus) - 1e-9 <= (found.use or 0) <= max(gpu.use or 0 for gpu in gpus) + 1e-9
    assert whole.states["queued"] == pytest.approx((len(gpus) - 1) / 2)
    shorter = thin(polls, whole.ended_at, fineness)
    assert sum(each.seconds for each in shorter) == whole.seconds
    assert sum(each.gpus["g"].ours_s for each in shorter) == pytest.approx(4 * len(gpus))


def test_old_stretches_get_longer_than_new_ones_and_a_gap_stays() -> None:
    polls = [Stretch(n, n + 1.0, 1.0) for n in range(1000)] + [
        Stretch(9000.0 + n, 9001.0 + n, 1.0) for n in range(1000)
    ]
    found = thin(polls, 10_000.0, 100)
    lengths = [each.ended_at - each.began_at for each in found]
    assert lengths[0] > 90 and lengths[-1] == 1 and max(lengths) <= 100
    assert sum(lengths) == 2000 and 200 < len(found) < 600
