"""What an attempt used, folded from the polls of its devices."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.core.jobs.usage import add, add_foreign, foreign_use_of, memory_on
from gpusched.core.model import NOBODY_SEEN, NOTHING_USED, DeviceProcess, ForeignUse, Sample, Usage


def sample(*processes: tuple[int, int | None], use: float | None = None, error: str | None = None) -> Sample:
    listed = tuple(DeviceProcess(pid, used) for pid, used in processes)
    return Sample("GPU-a", 0.0, 10_000, 20_000, listed, use, error=error)


HIDDEN = Sample("GPU-a", 0.0, 10_000, 20_000, None, 0.5)
LOST = Sample("GPU-a", 0.0, processes=None, error="lost")


def test_memory_is_that_of_our_processes_on_all_devices() -> None:
    assert add(Usage(), [sample((1, 100), (2, 30)), sample((1, 50), (9, 7000))], {1, 2}, None).peak_memory_bytes == 180
    assert memory_on(sample((9, 7000)), {1}) == 0


@pytest.mark.parametrize("dark", [HIDDEN, LOST, sample((1, None)), sample((1, 5), error="Unknown Error")])
def test_memory_that_one_device_does_not_tell_is_unknown(dark: Sample) -> None:
    assert add(Usage(), [sample((1, 100)), dark], {1}, None).peak_memory_bytes is None


@pytest.mark.parametrize("blind", [HIDDEN, sample((1, None))])
def test_where_processes_do_not_tell_the_device_does(blind: Sample) -> None:
    """What it has in use beyond what it had before the attempt; and it is said so."""
    before = {"GPU-a": 400}
    assert memory_on(blind, {1}, before) == 9_600
    usage = add(NOTHING_USED, [blind], {1}, None, before)
    assert (usage.peak_memory_bytes, usage.peak_device_bytes, usage.by_device) == (9_600, 9_600, True)
    assert memory_on(LOST, {1}, before) is None
    assert not add(NOTHING_USED, [sample((1, 100))], {1}, None, before).by_device


def test_a_process_of_others_may_hide_its_memory() -> None:
    assert memory_on(sample((1, 100), (9, None)), {1}) == 100


def test_peak_mean_and_energy() -> None:
    usage = NOTHING_USED
    for memory, use, energy in ((100, 0.2, 5.0), (300, 0.4, None), (200, 0.9, 2.5)):
        usage = add(usage, [sample((1, memory), use=use)], {1}, energy)
    assert (usage.samples, usage.peak_memory_bytes, usage.energy_j) == (3, 300, 7.5)
    assert (usage.mean_memory_bytes, usage.mean_utilisation) == pytest.approx((200, 0.5))


def test_utilisation_is_the_mean_over_the_devices_that_tell_it() -> None:
    usage = add(NOTHING_USED, [sample(use=0.2), sample(use=0.6), sample()], {1}, None)
    assert usage.mean_utilisation == pytest.approx(0.4)


def others(*listed: DeviceProcess, alone: bool = False) -> ForeignUse:
    """What one sample says in which the processes from 8 on are those of others."""
    return foreign_use_of([replace(HIDDEN, processes=listed)], {8, 9}, alone=alone)


BO, EVE = DeviceProcess(8, 490, "C", "bo", "python", 0.95), DeviceProcess(9, None, "G", "eve", "Xorg")
OWN = DeviceProcess(1, 7000, "C", "me", "train", 1.0)


def test_a_sample_tells_the_processes_of_others() -> None:
    assert others(OWN) == ForeignUse(samples=1)
    assert others(OWN, BO, EVE) == ForeignUse(1, 1, ("bo's python", "eve's Xorg"), 490, 0.95)
    assert others(EVE) == ForeignUse(1, 1, ("eve's Xorg",))  # what it uses is unknown
    assert (others(BO, alone=True).disturbed, others(OWN, alone=True).disturbed) == (True, False)


@pytest.mark.parametrize("samples", [[], [HIDDEN], [LOST], [sample((1, 5)), HIDDEN]])
def test_where_processes_are_not_listed_nobody_knows_of_others(samples: list[Sample]) -> None:
    assert foreign_use_of(samples, {8}, alone=True) == NOBODY_SEEN
    assert NOBODY_SEEN.share is None


def test_the_use_of_others_is_summed_up_over_the_polls() -> None:
    usage = NOTHING_USED
    for one in (others(OWN), others(OWN, BO), NOBODY_SEEN, others(OWN, EVE), others(OWN, replace(BO, utilisation=0.2))):
        usage = add(usage, [sample((1, 100))], {1}, None, foreign_use=one)
    use = usage.foreign_use
    assert use == ForeignUse(4, 3, ("bo's python", "eve's Xorg"), 490, 0.95)
    assert use.share == 0.75
    many = [others(DeviceProcess(8, 1, "C", name, "x")) for name in "abcd"]
    assert reduce(add_foreign, many).who == ("a's x", "b's x", "c's x")
    assert add_foreign(others(BO, alone=True), others(OWN)).disturbed


def test_what_is_never_told_stays_unknown() -> None:
    usage = add(add(NOTHING_USED, [HIDDEN], {1}, None), [HIDDEN], {1}, None)
    assert usage == Usage(2, None, None, 0.5, None)
    assert add(NOTHING_USED, [LOST], {1}, None) == NOTHING_USED
    assert add(NOTHING_USED, [LOST], {1}, 3.0) == Usage(energy_j=3.0)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 10**12), st.floats(0, 1))), max_size=20))
def test_polls_that_tell_nothing_do_not_weigh(polls: list[tuple[int, float] | None]) -> None:
    usage = NOTHING_USED
    for poll in polls:
        usage = add(usage, [LOST if poll is None else sample((1, poll[0]), use=poll[1])], {1}, None)
    told = [poll for poll in polls if poll is not None]
    assert usage.samples == len(told)
    if told:
        assert usage.peak_memory_bytes == max(memory for memory, _ in told)
        assert usage.mean_memory_bytes == pytest.approx(sum(memory for memory, _ in told) / len(told))
        assert usage.mean_utilisation == pytest.approx(sum(use for _, use in told) / len(told))


def used(pid: int, use: float | None) -> DeviceProcess:
    return DeviceProcess(pid, 10, utilisation=use)


@pytest.mark.parametrize(
    ("processes", "of_device", "is_idle"),
    [
        ((used(1, 0.0), used(9, 0.7)), 0.7, True),  # a neighbour works there
        ((used(1, 0.2), used(9, 0.7)), 0.7, False),
        ((used(9, 0.7),), 0.7, True),  # it is not on its device yet
        ((used(1, None),), 0.0, True),
        ((used(1, None),), 0.4, False),
        (None, 0.0, True),
        (None, 0.4, False),
        (None, None, False),  # nobody knows
    ],
)
def test_a_sample_is_idle_where_nothing_is_done(
    processes: tuple[DeviceProcess, ...] | None, of_device: float | None, is_idle: bool
) -> None:
    found = add(NOTHING_USED, [Sample("GPU-a", 0.0, 10, 20, processes, of_device)], {1}, None)
    assert found.idle_samples == is_idle and (found.idle_share or 0.0) == is_idle
