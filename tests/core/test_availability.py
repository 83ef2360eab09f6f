"""When a device is free: the count of checks, foreign memory, what cannot be read, and what comes after a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.core.model import MIB, Device, DeviceProcess, Reading, Sample
from gpusched.core.plan.availability import (
    RUNS_OURS,
    Availability,
    Criteria,
    DeviceState,
    OwnUse,
    fold,
    foreign_bytes,
    obstacle,
    settle,
    settle_pause_s,
    vanish,
)
from tests.support import build
from tests.support.traces import read_trace

GPU = build.device(uuid="GPU-a", total_bytes=24564 * MIB)
THREE = Criteria(max_checks=3)
ONE = Criteria(max_checks=1)
FREE, CHECKING, BUSY, RUNNING = DeviceState.FREE, DeviceState.CHECKING, DeviceState.BUSY, DeviceState.RUNNING
SETTLING, LOST, SET_ASIDE = DeviceState.SETTLING, DeviceState.LOST, DeviceState.SET_ASIDE


def process(pid: int, mib: int | None, *, user: str = "bo", kind: str = "C", use: float | None = None) -> DeviceProcess:
    return DeviceProcess(pid, None if mib is None else mib * MIB, kind, user, "python", use)


def sample(
    used_mib: int | None,
    *processes: DeviceProcess,
    at: float = 0.0,
    hidden: bool = False,
    utilisation: float | None = 0.0,
    error: str | None = None,
) -> Sample:
    used = None if used_mib is None else used_mib * MIB
    return Sample("GPU-a", at, used, GPU.total_bytes, None if hidden else processes, utilisation, error=error)


@dataclass
class Watch:
    """One device, sample after sample."""

    criteria: Criteria = THREE
    device: Device = GPU
    now: Availability = field(default_factory=lambda: Availability("GPU-a"))

    def see(
        self, found: Sample, *, ours: Iterable[int] = (), occupied: bool = False, polled: bool = True
    ) -> DeviceState:
        self.now = fold(
            self.now,
            self.device,
            found,
            OwnUse(frozenset(ours), occupied),
            polled=polled,
            criteria=self.criteria,
        )
        return self.now.state

    def polls(self, n: int, found: Sample, *, ours: Iterable[int] = (), occupied: bool = False) -> DeviceState:
        for _ in range(n):
            self.see(found, ours=ours, occupied=occupied)
        return self.now.state

    def look(self, found: Sample, *, ours: Set[int] = frozenset(), occupied: bool = False) -> DeviceState:
        return self.see(found, polled=False, ours=ours, occupied=occupied)

    def job_ends(self, at: float) -> None:
        self.now = settle(self.now, at)


def watch_box(
    readings: Iterable[Reading], criteria: Criteria, *, ours: Mapping[str, Set[int]] | None = None
) -> list[dict[str, Availability]]:
    """What is known of each device after each complete reading. `ours`: pids of our jobs, by device."""
    jobs = ours or {}
    known: dict[str, Availability] = {}
    story = []
    for reading in readings:
        for device, found in zip(reading.devices, reading.samples, strict=True):
            mine = jobs.get(device.uuid, frozenset())
            before = known.get(device.uuid, Availability(device.uuid))
            known[device.uuid] = fold(before, device, found, OwnUse(mine, device.uuid in jobs), criteria=criteria)
        listed = {device.uuid for device in reading.devices}
        for uuid in known.keys() - listed:
            known[uuid] = vanish(known[uuid], reading.at)
        story.append(dict(known))
    return story


def first_free(story: Sequence[Mapping[str, Availability]], uuid: str) -> int | None:
    """The first tick after which a device is free."""
    return next((tick for tick, known in enumerate(story) if known[uuid].state is FREE), None)


# ---- the cases -------------------------------------------------------------------------------------


def test_the_card_that_was_checked_is_known_by_uuid_not_by_cudas_order() -> None:
    trace = read_trace("20-order.nvml.json")
    slow, fast = trace.uuids
    story = watch_box(trace, Criteria())
    assert first_free(story, slow) == 9
    assert {known[fast].state for known in story} == {BUSY}
    assert story[-1][fast].why == "20000 MiB in use by bo's python (pid 900), threshold 500 MiB"
    assert (trace[0].devices[0].uuid, trace[0].devices[0].index) == (slow, 0)


def test_the_drivers_reserve_is_nobodys_memory() -> None:
    trace = read_trace("22-reserved.nvml.json")
    story = watch_box(trace, Criteria())
    assert [first_free(story, uuid) for uuid in trace.uuids] == [9, 9]


def test_where_only_memory_v1_is_read_the_reserve_is_told() -> None:
    trace = read_trace("22-reserved.nvml.json", v1=True)
    story = watch_box(trace, Criteria())
    assert [story[-1][uuid].why for uuid in trace.uuids] == [
        "517 MiB in use (with the driver's reserve), threshold 500 MiB",
        "912 MiB in use (with the driver's reserve), threshold 500 MiB",
    ]
    story = watch_box(trace, Criteria(threshold_bytes=1000 * MIB))
    assert [first_free(story, uuid) for uuid in trace.uuids] == [9, 9]


def test_unified_memory_is_free_only_if_it_is_allowed_to_go_by_processes() -> None:
    trace = read_trace("24-unified.nvml.json")
    (uuid,) = trace.uuids
    story = watch_box(trace, Criteria())
    assert {known[uuid].state for known in story} == {BUSY}
    assert "memory not readable" in story[0][uuid].why
    assert "--allow-unreadable-memory" in story[0][uuid].why
    assert first_free(watch_box(trace, Criteria(allow_unreadable_memory=True)), uuid) == 9


@pytest.mark.parametrize("allowed", [False, True])
def test_a_discrete_card_whose_memory_cannot_be_read_is_never_free(allowed: bool) -> None:
    trace = read_trace("24-unified.nvml.json", card="NVIDIA A5000")
    story = watch_box(trace, Criteria(max_checks=1, allow_unreadable_memory=allowed))
    assert {known[trace.uuids[0]].state for known in story} == {BUSY}
    assert story[0][trace.uuids[0]].why == "memory not readable"


def test_a_lost_card_is_set_aside_and_renumbered_ones_keep_their_count() -> None:
    trace = read_trace("26-lost.nvml.json")
    busy, lost, ours, freed = trace.uuids
    story = watch_box(trace, Criteria(), ours={ours: {777}})
    assert [known[lost].state for known in story[:5]] == [CHECKING] * 4 + [LOST]
    assert {known[lost].state for known in story[4:]} == {LOST}
    assert story[-1][lost].since == 20.0  # told once, not again when the count changes
    assert {known[ours].state for known in story} == {RUNNING}
    assert [known[ours].count for known in story[:5]] == [1, 2, 3, 4, 4]  # then its processes are hidden, or have ended
    assert {known[busy].state for known in story} == {BUSY}
    assert first_free(story, freed) == 8 + 9
    assert {device.uuid: device.index for device in trace[17].devices}[freed] == 2


def test_exactly_n_checks_in_a_row() -> None:
    trace = read_trace("28-nchecks.nvml.json")
    (uuid,) = trace.uuids
    story = watch_box(trace, THREE)
    assert [known[uuid].count for known in story] == [1, 2, 0, 1, 0, 1, 2, 3]
    assert first_free(story, uuid) == trace.expect["claim_at_tick"] == 7
    assert first_free(watch_box(trace, ONE), uuid) == 0


def test_eight_candidates_keep_eight_counts() -> None:
    trace = read_trace("28-nchecks.nvml.json")
    devices = [replace(trace[0].devices[0], uuid=f"GPU-{n}", index=n) for n in range(8)]
    readings = []
    for tick in range(24):
        found = [trace[max(0, tick - n)].samples[0] for n in range(8)]  # GPU n begins n ticks later
        samples = [replace(one, uuid=device.uuid) for one, device in zip(found, devices, strict=True)]
        readings.append(Reading(tick, tick, tuple(devices), tuple(samples)))
    story = watch_box(readings, THREE)
    first = [first_free(story, device.uuid) for device in devices]
    assert first == [7, 2, 2, 2, 2, 2, 2, 2]
    again = [max(t for t, known in enumerate(story) if known[d.uuid].state is not FREE) for d in devices]
    assert again == [6 + n for n in range(8)]


def test_a_last_look_gives_the_card_up_and_its_count_begins_again() -> None:
    trace = read_trace("33-arrives.nvml.json")
    story = watch_box(trace, THREE)
    assert first_free(story, trace.uuids[1]) == 2
    device, found = trace[3].devices[1], trace[3].samples[1]
    looked = fold(story[2][trace.uuids[1]], device, found, polled=False, criteria=THREE)
    assert (looked.state, looked.count) == (BUSY, 0)
    assert looked.why == "3000 MiB in use by bo's python (pid 88), threshold 500 MiB"
    assert first_free(story, trace.uuids[3]) == 7


# ---- the count -------------------------------------------------------------------------------------


def test_the_threshold_itself_is_not_free() -> None:
    at_threshold = replace(sample(0), used_bytes=500 * MIB)
    assert obstacle(GPU, at_threshold, OwnUse(), ONE) == "500 MiB in use, threshold 500 MiB"
    assert obstacle(GPU, replace(at_threshold, used_bytes=500 * MIB - 1), OwnUse(), ONE) is None


def test_only_polls_raise_the_count_but_any_look_can_reset_it() -> None:
    watch = Watch()
    watch.polls(2, sample(4))
    assert watch.look(sample(4)) is CHECKING
    assert (watch.now.count, watch.now.why) == (2, "free at 2 of 3 checks")
    assert watch.look(sample(900)) is BUSY
    assert watch.polls(2, sample(4)) is CHECKING
    assert watch.see(sample(4)) is FREE


def test_a_look_before_the_first_poll_makes_nothing_free() -> None:
    watch = Watch(ONE)
    assert watch.look(sample(4)) is CHECKING
    assert watch.see(sample(4)) is FREE


def test_the_count_stops_at_what_is_asked_for_and_follows_it() -> None:
    watch = Watch()
    watch.polls(10, sample(4))
    assert watch.now.count == 3
    watch.criteria = Criteria(max_checks=4)
    assert watch.look(sample(4)) is CHECKING
    assert watch.see(sample(4)) is FREE
    watch.criteria = ONE
    assert (watch.look(sample(4)), watch.now.count) == (FREE, 1)


def test_since_is_when_the_state_began() -> None:
    watch = Watch()
    for at in range(5):
        watch.see(sample(4, at=at))
    assert (watch.now.state, watch.now.since, watch.now.at) == (FREE, 2.0, 4.0)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20))
def test_free_means_n_polls_in_a_row_without_a_bad_look_between(n: int, looks: list[tuple[bool, bool]]) -> None:
    watch = Watch(Criteria(max_checks=n))
    row = 0
    for good, polled in looks:
        watch.see(sample(4 if good else 600), polled=polled)
        row = row + polled if good else 0
        assert (watch.now.state is FREE) == (good and row >= n)
        assert watch.now.count == min(row, n)


# ---- whose memory it is ----------------------------------------------------------------------------


def test_foreign_memory_is_what_our_processes_do_not_use() -> None:
    mixed = sample(9000, process(1, 5000), process(2, 3000))
    assert foreign_bytes(mixed, OwnUse()) == 9000 * MIB
    assert foreign_bytes(mixed, OwnUse({1})) == 4000 * MIB
    assert foreign_bytes(mixed, OwnUse({1, 2, 3})) == 1000 * MIB
    assert foreign_bytes(sample(100, process(1, 300)), OwnUse({1})) == 0
    assert foreign_bytes(sample(None, process(1, 300)), OwnUse({1})) is None
    assert foreign_bytes(sample(9000, process(1, None)), OwnUse({1})) is None
    assert foreign_bytes(sample(9000, hidden=True), OwnUse({1})) is None
    assert foreign_bytes(sample(9000, hidden=True), OwnUse()) == 9000 * MIB


@pytest.mark.parametrize("found", [sample(9000, hidden=True), sample(9000, process(1, None), process(2, 300))])
def test_where_the_driver_does_not_tell_what_our_jobs_report_of_themselves_counts(found: Sample) -> None:
    assert foreign_bytes(found, OwnUse({1, 2}, True, 8700 * MIB)) == 300 * MIB
    assert foreign_bytes(found, OwnUse({1, 2}, True, 9100 * MIB)) == 0
    assert foreign_bytes(sample(9000, process(1, 5000)), OwnUse({1}, True, 9000 * MIB)) == 4000 * MIB  # it tells


def test_the_count_of_others_goes_on_while_our_job_runs() -> None:
    watch = Watch()
    watch.see(sample(4))
    assert watch.polls(2, sample(8000, process(7, 7990)), ours={7}, occupied=True) is RUNNING
    assert (watch.now.count, watch.now.foreign_bytes) == (3, 10 * MIB)
    watch.job_ends(at=1.0)
    assert watch.look(sample(4, at=1.005)) is FREE


def test_a_look_after_the_last_process_of_a_job_and_before_its_end_keeps_the_count() -> None:
    watch = Watch()
    watch.polls(3, sample(8000, process(7, 7990)), ours={7}, occupied=True)
    assert watch.look(sample(8000, at=3.0), occupied=True) is RUNNING
    assert watch.now.count == 3
    watch.job_ends(at=3.01)
    assert watch.look(sample(4, at=3.02)) is FREE


def test_a_colleague_at_a_look_beside_our_job_resets_the_count() -> None:
    watch = Watch()
    watch.polls(3, sample(8000, process(7, 7990)), ours={7}, occupied=True)
    watch.look(sample(9000, process(7, 7990), process(8, 1000), at=3.0), ours={7}, occupied=True)
    assert watch.now.count == 0


def test_memory_that_nothing_explains_beside_our_job_resets_the_count_in_the_end() -> None:
    watch = Watch()
    watch.polls(3, sample(8000, process(7, 7990)), ours={7}, occupied=True)
    watch.look(sample(8000, at=3.0), occupied=True)
    watch.look(sample(8000, at=34.0), occupied=True)
    assert watch.now.count == 0


def test_a_colleague_beside_our_job_resets_the_count() -> None:
    watch = Watch()
    watch.polls(3, sample(8000, process(7, 7990)), ours={7}, occupied=True)
    assert watch.see(sample(9000, process(7, 7990), process(8, 1000)), ours={7}, occupied=True) is RUNNING
    assert (watch.now.count, watch.now.foreign_bytes) == (0, 1010 * MIB)
    assert "1010 MiB in use by bo's python (pid 8)" in watch.now.why


def test_where_processes_cannot_be_told_apart_the_count_begins_again_after_each_job() -> None:
    watch = Watch()
    watch.polls(3, sample(4))
    watch.look(sample(8000, hidden=True), occupied=True)
    assert watch.polls(3, sample(8000, hidden=True), occupied=True) is RUNNING
    assert watch.now.count == 0
    watch.job_ends(at=1.0)
    assert watch.look(sample(4, at=1.005, hidden=True)) is CHECKING
    assert watch.polls(3, sample(4, at=2.0, hidden=True)) is FREE


def test_a_container_that_lists_our_processes_under_other_pids_begins_again_too() -> None:
    watch = Watch()
    watch.polls(3, sample(4))
    watch.polls(3, sample(8000, process(31007, 7990, user="?")), occupied=True)
    assert watch.now.count == 0


def test_a_process_of_ours_that_does_not_tell_its_memory_ends_the_count() -> None:
    watch = Watch()
    watch.polls(3, sample(4))
    watch.see(sample(8000, process(7, None)), ours={7}, occupied=True)
    assert (watch.now.count, watch.now.foreign_bytes) == (0, None)


# ---- after a job -----------------------------------------------------------------------------------


def after_a_job(criteria: Criteria = THREE, device: Device = GPU) -> Watch:
    """A device whose job, pid 7, has just ended at t=100 after having been free of others long enough."""
    watch = Watch(criteria, device)
    watch.polls(5, sample(8000, process(7, 7990, user="me"), at=98.0), ours={7}, occupied=True)
    watch.job_ends(at=100.0)
    assert (watch.now.state, watch.now.since) == (SETTLING, 100.0)
    return watch


def test_memory_that_comes_back_late_is_waited_for_and_then_the_next_job_may_start() -> None:
    watch = after_a_job()
    assert watch.look(sample(7000, at=100.005)) is SETTLING
    assert watch.now.why == "waiting for the memory of our last job: 7000 MiB in use, threshold 500 MiB"
    assert watch.see(sample(3000, at=101.0)) is SETTLING  # a poll in between changes nothing
    assert watch.look(sample(4, at=101.1)) is FREE
    assert watch.now.settling_since is None


@pytest.mark.parametrize(
    "found",
    [sample(8000, at=100.0, hidden=True), sample(8000, at=100.0), sample(8000, process(7, 7990, user="me"), at=100.0)],
    ids=["the driver lists nobody", "its process is gone", "its process is listed, and dead"],
)
def test_a_poll_between_the_last_process_of_a_job_and_its_end_keeps_the_count(found: Sample) -> None:
    watch = Watch()
    watch.polls(5, sample(8000, process(7, 7990, user="me"), at=98.0), ours={7}, occupied=True)
    assert (watch.see(found, occupied=True), watch.now.count) == (RUNNING, 3)
    watch.job_ends(at=100.1)
    assert watch.look(sample(4, at=100.3)) is FREE


@pytest.mark.parametrize("settles", [False, True], ids=["before its end is known", "after that"])
@pytest.mark.parametrize("is_listed", [True, False], ids=["listed, and dead", "not listed any more"])
def test_a_process_that_was_never_seen_alive_is_that_of_the_job(settles: bool, is_listed: bool) -> None:
    """A job that is shorter than the time between two polls."""
    watch = Watch()
    watch.polls(3, sample(4, at=98.0))
    watch.look(sample(4, at=98.5), occupied=True)
    if settles:
        watch.job_ends(at=100.0)
    own = OwnUse(occupied=not settles, gone=frozenset({7} if is_listed else ()), has_host_pids=True)
    found = sample(1000, *[process(7, 1000, user="me")] * is_listed, at=100.1, hidden=not is_listed)
    watch.now = fold(watch.now, GPU, found, own, criteria=THREE)
    assert watch.now.count == 3 and watch.now.state is (SETTLING if settles else RUNNING)
    assert "unknown process" not in watch.now.why
    watch.job_ends(at=100.2)
    assert watch.look(sample(4, at=100.3)) is FREE


def test_the_next_process_of_a_job_may_come_before_the_memory_of_the_last_one_is_back() -> None:
    """A script that starts one program on the GPU after the other."""
    watch = Watch()
    watch.polls(5, sample(6000, process(7, 5990, user="me"), at=98.0), ours={7}, occupied=True)
    for pid in (8, 9, 10):
        at = 100.0 + 4 * pid
        watch.see(sample(12000, process(pid, 5990, user="me"), at=at), ours={pid}, occupied=True)
        assert (watch.now.state, watch.now.count, watch.now.why) == (RUNNING, 3, RUNS_OURS)
        watch.see(sample(6000, process(pid, 5990, user="me"), at=at + 2), ours={pid}, occupied=True)
        assert (watch.now.count, watch.now.settling_since) == (3, None)
    watch.see(sample(12000, process(10, 5990, user="me"), at=150.0), ours={10}, occupied=True)
    assert watch.now.count == 0, "nobody of ours has left: it is somebody else's"


def test_memory_that_hidden_processes_keep_beside_a_job_counts_after_the_time_to_settle() -> None:
    watch = Watch()
    watch.polls(5, sample(8000, process(7, 7990, user="me"), at=98.0), ours={7}, occupied=True)
    watch.see(sample(8000, at=100.0, hidden=True), ours={7}, occupied=True)
    watch.see(sample(8000, at=131.0, hidden=True), ours={7}, occupied=True)
    assert (watch.now.state, watch.now.count) == (RUNNING, 0)


def test_memory_that_never_comes_back_sets_the_device_aside_until_it_does() -> None:
    watch = after_a_job()
    assert watch.look(sample(7000, at=130.0)) is SETTLING
    assert watch.look(sample(7000, at=130.1)) is SET_ASIDE
    why = watch.now.why
    assert why == "7000 MiB in use, threshold 500 MiB: not given back 30 s after our job ended"
    assert watch.polls(5, sample(6000, at=140.0)) is SET_ASIDE
    assert (watch.now.why, watch.now.count, watch.now.since) == (why, 0, 130.1)
    assert watch.look(sample(4, at=150.0)) is CHECKING
    assert watch.polls(2, sample(4, at=152.0)) is CHECKING  # it counts anew
    assert watch.see(sample(4, at=154.0)) is FREE


def test_a_colleague_who_arrives_while_memory_settles_is_seen_as_such() -> None:
    watch = after_a_job()
    assert watch.look(sample(3300, process(8, 300), at=100.1)) is SETTLING  # too little to be the reason
    assert watch.look(sample(5000, process(8, 2000), at=100.2)) is BUSY
    assert watch.now.why == "5000 MiB in use by bo's python (pid 8), threshold 500 MiB"
    assert (watch.now.count, watch.now.settling_since) == (0, None)


def test_a_colleague_on_a_device_that_was_set_aside_makes_it_busy() -> None:
    watch = after_a_job()
    watch.look(sample(7000, at=131.0))
    assert watch.see(sample(8000, process(8, 1000), at=133.0)) is BUSY
    assert watch.see(sample(7000, at=135.0)) is BUSY


def test_our_dead_process_that_is_still_listed_is_no_colleague() -> None:
    watch = after_a_job()
    assert watch.look(sample(8000, process(7, 7990, user="me"), at=100.005)) is SETTLING
    assert watch.see(sample(4000, process(7, 3990, user="me"), at=100.5)) is SETTLING
    assert watch.look(sample(4, at=100.6)) is FREE
    assert watch.now.ours == ()


def test_a_dead_process_counts_as_long_as_it_holds_memory() -> None:
    watch = after_a_job()
    assert watch.look(sample(8000, process(7, 7990, user="me"), at=131.0)) is SET_ASIDE
    assert watch.see(sample(8000, process(7, 7990, user="me"), at=133.0)) is SET_ASIDE
    assert watch.see(sample(4, at=135.0)) is CHECKING


def test_a_dead_process_beside_a_colleague() -> None:
    watch = after_a_job()
    assert watch.look(sample(9000, process(7, 7990, user="me"), process(8, 1000), at=100.1)) is BUSY


def test_our_pids_are_forgotten_once_the_device_is_free() -> None:
    watch = after_a_job()
    watch.look(sample(4, at=100.1))
    assert watch.see(sample(2000, process(7, 1990), at=102.0)) is BUSY
    assert watch.now.why.endswith("by bo's python (pid 7), threshold 500 MiB")


def test_hidden_processes_while_memory_settles() -> None:
    watch = after_a_job()
    assert watch.look(sample(7000, at=100.1, hidden=True)) is SETTLING
    assert watch.look(sample(7000, process(7, 6990, user="me"), at=100.2)) is SETTLING  # and listed again
    assert watch.look(sample(4, at=100.3, hidden=True)) is FREE


def test_idle_only_waits_for_our_dead_process_and_not_for_a_colleague() -> None:
    watch = after_a_job(Criteria(max_checks=3, free_when="idle"))
    assert watch.look(sample(20, process(7, 16, user="me"), at=100.1)) is SETTLING
    assert watch.look(sample(120, process(8, 100), at=100.2)) is BUSY


def test_reading_fails_while_memory_settles() -> None:
    watch = after_a_job()
    assert watch.look(sample(None, error="Unknown Error", at=100.1)) is SET_ASIDE
    assert watch.now.why == "cannot be read: Unknown Error"
    assert watch.see(sample(7000, at=102.0)) is BUSY
    assert watch.polls(3, sample(4, at=104.0)) is FREE


def test_a_lost_device_has_no_memory_to_give_back() -> None:
    watch = Watch()
    watch.see(sample(8000, process(7, 7990)), ours={7}, occupied=True)
    assert watch.see(sample(None, error="lost", at=5.0), occupied=True) is LOST
    watch.job_ends(at=6.0)
    assert (watch.now.state, watch.now.since) == (LOST, 5.0)


def test_a_device_that_cannot_be_read_when_its_job_ends_stays_set_aside() -> None:
    watch = Watch()
    watch.see(sample(None, error="Unknown Error", at=5.0), occupied=True)
    watch.job_ends(at=6.0)
    assert (watch.now.state, watch.now.since) == (SET_ASIDE, 5.0)
    assert watch.see(sample(7000, at=7.0)) is BUSY


@pytest.mark.parametrize(
    ("settling_for_s", "pause_s"), [(0.0, 0.005), (0.005, 0.005), (0.01, 0.005), (0.08, 0.01), (0.4, 0.05), (9.0, 0.5)]
)
def test_looks_at_a_settling_device_come_fast_at_first(settling_for_s: float, pause_s: float) -> None:
    assert settle_pause_s(settling_for_s) == pytest.approx(pause_s)


# ---- lost and back ---------------------------------------------------------------------------------


def test_a_lost_device_that_is_back_counts_anew() -> None:
    watch = Watch()
    watch.polls(3, sample(4))
    assert watch.see(sample(None, error="lost", at=9.0)) is LOST
    assert watch.now.why == "lost"
    assert watch.polls(2, sample(4, at=11.0)) is CHECKING
    assert watch.see(sample(4, at=13.0)) is FREE


def test_a_device_that_leaves_the_box_is_lost_once() -> None:
    watch = Watch()
    watch.polls(3, sample(4))
    gone = vanish(watch.now, 20.0)
    assert (gone.state, gone.count, gone.since, gone.why) == (LOST, 0, 20.0, "no longer in the box")
    assert vanish(gone, 30.0) is gone


def test_our_job_goes_on_through_an_error_of_its_device() -> None:
    watch = Watch()
    assert watch.see(sample(None, error="Unknown Error"), occupied=True) is SET_ASIDE
    assert watch.see(sample(8000, process(7, 7990)), ours={7}, occupied=True) is RUNNING


# ---- modes -----------------------------------------------------------------------------------------

EXCLUSIVE = replace(GPU, compute_mode="exclusive_process")
PROHIBITED = replace(GPU, compute_mode="prohibited")
PARENT = replace(GPU, mig_parent=True)
INSTANCE = replace(GPU, uuid="MIG-a", parent_uuid="GPU-a")
UNIFIED = replace(GPU, unified_memory=True, total_bytes=None)


@pytest.mark.parametrize(
    ("device", "why"),
    [(PROHIBITED, "compute mode PROHIBITED"), (PARENT, "in MIG mode: only its instances are handed out")],
)
def test_some_devices_are_never_handed_out(device: Device, why: str) -> None:
    watch = Watch(ONE, device)
    assert watch.polls(3, sample(0)) is SET_ASIDE
    assert (watch.now.count, watch.now.why, watch.now.withheld) == (0, why, False)
    watch.device = GPU
    assert watch.see(sample(4)) is FREE  # and by itself again when the mode has changed


def test_a_mode_that_changes_under_our_job_leaves_the_job_alone() -> None:
    watch = Watch(ONE)
    watch.polls(2, sample(8000, process(7, 7990)), ours={7}, occupied=True)
    watch.device = PROHIBITED
    assert watch.see(sample(8000, process(7, 7990)), ours={7}, occupied=True) is RUNNING
    watch.job_ends(at=1.0)
    assert watch.look(sample(8000, at=1.1)) is SET_ASIDE
    assert watch.now.why == "compute mode PROHIBITED"


def test_a_mig_instance_is_a_device() -> None:
    assert Watch(ONE, INSTANCE).see(sample(4)) is FREE


def test_exclusive_process_mode_with_a_process_is_busy() -> None:
    watch = Watch(ONE, EXCLUSIVE)
    assert watch.see(sample(4)) is FREE
    assert watch.see(sample(30, process(5, 20))) is BUSY
    assert watch.now.why == "exclusive-process mode, and bo's python (pid 5) is on it"
    assert watch.see(sample(30, process(5, 20, kind="G"))) is FREE
    assert watch.see(sample(30, process(5, 20, kind="M"))) is BUSY


def test_exclusive_process_mode_with_hidden_processes_is_not_free() -> None:
    assert Watch(ONE, EXCLUSIVE).see(sample(4, hidden=True)) is BUSY


def test_our_own_process_is_no_obstacle_to_its_count_in_exclusive_mode() -> None:
    watch = Watch(ONE, EXCLUSIVE)
    watch.see(sample(8000, process(7, 7990)), ours={7}, occupied=True)
    assert watch.now.count == 1
    watch.job_ends(at=1.0)
    assert watch.look(sample(30, process(7, 20), at=1.1)) is SETTLING
    assert watch.look(sample(4, at=1.2)) is FREE


def test_free_when_idle_asks_for_no_compute_process() -> None:
    watch = Watch(Criteria(max_checks=1, free_when="idle"))
    assert watch.see(sample(100, process(5, 90), process(6, 1))) is BUSY
    assert watch.now.why == "bo's python (pid 5) and 1 more is on it (--free-when idle)"
    assert watch.see(sample(100, process(5, 90, kind="G"))) is FREE
    assert watch.see(sample(4, hidden=True)) is BUSY
    assert watch.see(sample(4)) is FREE


def test_free_when_idle_still_goes_by_memory() -> None:
    assert Watch(Criteria(max_checks=1, free_when="idle")).see(sample(600)) is BUSY


# ---- work of others in little memory ---------------------------------------------------------------

SMALL = 90  # MiB, below the threshold


def busy_neighbour(use: float | None = 0.95, **more: Any) -> Sample:
    return sample(SMALL, process(5, SMALL, use=use), utilisation=use, **more)


def test_who_works_in_little_memory_keeps_the_gpu_and_who_idles_does_not() -> None:
    watch = Watch()
    assert watch.polls(3, busy_neighbour(0.0)) is FREE
    assert watch.see(busy_neighbour(0.01)) is BUSY  # any work
    assert (watch.now.why, watch.now.count) == ("bo's python (pid 5) works on it (1% GPU use)", 0)
    assert watch.polls(2, busy_neighbour(0.0)) is CHECKING


@pytest.mark.parametrize(("rule", "state"), [("auto", BUSY), ("memory", FREE), ("idle", BUSY)])
def test_only_auto_and_idle_mind_work_in_little_memory(rule: str, state: DeviceState) -> None:
    assert Watch(Criteria(max_checks=1, free_when=rule)).see(busy_neighbour()) is state


def test_the_last_look_asks_for_work_too() -> None:
    watch = Watch(ONE)
    assert watch.see(sample(4)) is FREE
    assert watch.look(busy_neighbour()) is BUSY


def test_the_work_of_a_desktop_and_of_our_job_is_not_others_work() -> None:
    assert Watch(ONE).see(sample(SMALL, process(5, SMALL, kind="G", use=0.5), utilisation=0.5)) is FREE
    watch = Watch(ONE)
    ours, other = process(7, 9000, use=0.9), process(5, SMALL, use=0.3)
    watch.see(sample(9000, ours, utilisation=0.9), ours={7}, occupied=True)
    assert (watch.now.state, watch.now.count) == (RUNNING, 1)
    watch.see(sample(9090, ours, other, utilisation=1.0), ours={7}, occupied=True)
    assert (watch.now.state, watch.now.count) == (RUNNING, 0)  # the next job waits until it is free of others again
    watch.job_ends(at=5.0)
    assert watch.look(sample(SMALL, other, at=5.1)) is BUSY


def test_our_last_process_that_is_still_listed_is_waited_for_and_not_blamed() -> None:
    watch = Watch(ONE)
    watch.see(sample(9000, process(7, 9000, use=0.9)), ours={7}, occupied=True)
    watch.job_ends(at=5.0)
    assert watch.look(sample(SMALL, process(7, SMALL, use=0.9), at=5.1)) is SETTLING
    assert watch.look(sample(4, at=5.2)) is FREE


UNTOLD = process(5, SMALL)


@pytest.mark.parametrize(
    "found", [sample(SMALL, UNTOLD, utilisation=0.05), sample(SMALL, hidden=True, utilisation=0.05)]
)
def test_where_processes_do_not_tell_the_mean_of_the_device_does(found: Sample) -> None:
    assert Watch(ONE).see(found) is BUSY
    assert Watch(ONE).see(replace(found, utilisation=0.049)) is FREE
    assert Watch(ONE).see(replace(found, utilisation=None)) is FREE  # unknown: by memory
    assert Watch(Criteria(max_checks=1, free_when="memory")).see(found) is FREE


def test_the_mean_of_the_device_in_words() -> None:
    why = "30% in use, and bo's python (pid 5) is on it (--free-when memory ignores that)"
    assert obstacle(GPU, sample(SMALL, UNTOLD), OwnUse(), ONE, mean_use=0.3) == why
    why = "30% in use by an unknown process (of a container, or just ended) (--free-when memory ignores that)"
    assert obstacle(GPU, sample(SMALL, hidden=True), OwnUse(), ONE, mean_use=0.3) == why
    assert obstacle(GPU, sample(SMALL, utilisation=0.3), OwnUse(), ONE, mean_use=0.3) is None  # nobody computes there


def test_the_mean_is_over_the_checks_and_a_look_stands_for_itself() -> None:
    watch = Watch(Criteria(max_checks=10))
    quiet = sample(SMALL, hidden=True, utilisation=0.0)
    assert watch.polls(9, quiet) is CHECKING
    assert watch.see(replace(quiet, utilisation=0.45)) is FREE  # 4.5 % over ten checks
    assert watch.look(replace(quiet, utilisation=0.04)) is FREE
    assert watch.look(replace(quiet, utilisation=0.45)) is BUSY
    assert watch.polls(10, quiet) is FREE  # what was before does not count any more


def test_the_use_of_our_own_job_is_not_taken_for_others_work() -> None:
    """A driver's utilisation is that of the last second; without this no job would follow at once."""
    watch = Watch(ONE)
    watch.see(sample(9000, process(7, 9000), UNTOLD, utilisation=0.99), ours={7}, occupied=True)
    watch.job_ends(at=100.0)
    assert watch.look(sample(SMALL, UNTOLD, utilisation=0.99, at=100.1)) is FREE
    assert watch.see(sample(SMALL, UNTOLD, utilisation=0.6, at=101.0)) is FREE
    assert watch.see(sample(SMALL, UNTOLD, utilisation=0.6, at=102.2)) is BUSY  # somebody else's by now


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([0, 90, 600]), st.booleans()), min_size=1, max_size=8))
def test_where_no_use_is_known_auto_is_the_rule_of_memory(story: list[tuple[bool, int, bool]]) -> None:
    watches = [Watch(Criteria(max_checks=2, free_when=rule)) for rule in ("auto", "memory")]
    for polled, mib, hidden in story:
        found = sample(mib, process(5, mib), hidden=hidden, utilisation=None)
        states = {watch.see(found, polled=polled) for watch in watches}
        assert len(states) == 1


# ---- unified memory --------------------------------------------------------------------------------

BY_PROCESS = Criteria(max_checks=2, allow_unreadable_memory=True)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (sample(None, process(5, None)), "bo's python (pid 5) is on it"),
        (sample(None, utilisation=0.3), "30% in use"),
        (sample(None, utilisation=None), "neither memory nor processes and utilisation can be read"),
        (sample(None, hidden=True), "neither memory nor processes and utilisation can be read"),
    ],
)
def test_unified_memory_goes_by_processes_and_utilisation(found: Sample, why: str) -> None:
    watch = Watch(BY_PROCESS, UNIFIED)
    watch.polls(2, sample(None))
    assert watch.see(found) is BUSY
    assert watch.now.why == why


def test_a_look_between_polls_at_unified_memory_goes_by_processes_alone() -> None:
    """Where utilisation is read at polls only; without this no job would ever start there."""
    watch = Watch(BY_PROCESS, UNIFIED)
    assert watch.polls(2, sample(None)) is FREE
    assert watch.look(sample(None, utilisation=None)) is FREE
    assert watch.look(sample(None, process(5, None), utilisation=None)) is BUSY


def test_a_job_on_unified_memory_and_its_end() -> None:
    watch = Watch(BY_PROCESS, UNIFIED)
    watch.polls(2, sample(None))
    assert watch.see(sample(None, process(7, None), utilisation=0.9), ours={7}, occupied=True) is RUNNING
    assert watch.now.count == 0
    watch.job_ends(at=1.0)
    assert watch.look(sample(None, process(7, None), utilisation=None, at=1.1)) is SETTLING
    assert watch.look(sample(None, utilisation=None, at=1.2)) is CHECKING
    assert watch.polls(2, sample(None, at=2.0)) is FREE


# ---- nothing unknown is ever read as zero ----------------------------------------------------------

PIDS = st.integers(1, 4)
PROCESSES = st.lists(
    st.builds(
        DeviceProcess, PIDS, st.sampled_from([0, 100, 499, 501, 3000]).map(lambda mib: mib * MIB), kind=st.just("C")
    ),
    max_size=3,
    unique_by=lambda p: p.pid,
)
RULES = st.sampled_from(["auto", "memory", "idle"])
MODES = st.sampled_from([GPU, EXCLUSIVE, UNIFIED, replace(UNIFIED, compute_mode="exclusive_process")])


@st.composite
def known_samples(draw: st.DrawFn) -> Sample:
    """A sample with every field readable."""
    listed = tuple(draw(PROCESSES))
    more = draw(st.sampled_from([0, 4, 450, 600])) * MIB
    used = sum(p.used_bytes or 0 for p in listed) + more
    return Sample("GPU-a", 0.0, used, GPU.total_bytes, listed, draw(st.sampled_from([0.0, 0.04, 0.5])))


@st.composite
def veiled(draw: st.DrawFn, found: Sample) -> Sample:
    """The same device at the same moment, with some of it not readable."""
    listed = found.processes or ()
    hide = draw(st.sets(st.sampled_from(["used", "total", "processes", "sizes", "utilisation", "all"]), min_size=1))
    if "all" in hide:
        return Sample("GPU-a", 0.0, processes=None, error="lost")
    if "sizes" in hide:
        dark = draw(st.sets(PIDS))
        listed = tuple(replace(p, used_bytes=None) if p.pid in dark else p for p in listed)
    return replace(
        found,
        used_bytes=None if "used" in hide else found.used_bytes,
        total_bytes=None if "total" in hide else found.total_bytes,
        processes=None if "processes" in hide else listed,
        utilisation=None if "utilisation" in hide else found.utilisation,
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.data(), MODES, known_samples(), st.frozensets(PIDS), st.booleans(), st.sampled_from(["memory", "idle"]))
def test_what_cannot_be_read_only_makes_a_device_less_free(
    data: st.DataObject, device: Device, found: Sample, ours: frozenset[int], occupied: bool, rule: str
) -> None:
    criteria = Criteria(free_when=rule)
    seen = data.draw(veiled(found))
    if obstacle(device, seen, OwnUse(ours, occupied), criteria) is None:
        assert obstacle(device, found, OwnUse(ours, occupied), criteria) is None


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.data(), MODES, known_samples(), st.frozensets(PIDS), st.booleans(), st.booleans(), RULES)
def test_unreadable_memory_is_free_only_where_nobody_is_seen(
    data: st.DataObject,
    device: Device,
    found: Sample,
    ours: frozenset[int],
    occupied: bool,
    polled: bool,
    rule: str,
) -> None:
    """Under the option too: on a unified board, with every process listed and nothing of others there."""
    criteria = Criteria(free_when=rule, allow_unreadable_memory=True)
    seen = replace(data.draw(veiled(found)), used_bytes=None)
    if obstacle(device, seen, OwnUse(ours, occupied), criteria, polled=polled) is None:
        assert device.unified_memory
        assert not occupied
        assert seen.processes is not None
        assert all(p.pid in ours for p in seen.processes)
        assert not polled or seen.utilisation is not None
        assert (seen.utilisation or 0.0) <= 0.05


MOMENTS = st.tuples(
    st.sampled_from(["poll", "look", "job", "end"]),
    st.sampled_from([0, 4, 600, 9000]),
    st.sampled_from([(), (7,), (8,), (7, 8)]),
    st.booleans(),
    st.sampled_from([None, None, None, "lost", "Unknown Error"]),
    st.floats(0.001, 20.0),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(MOMENTS, max_size=16), st.integers(1, 3))
def test_a_free_device_has_been_seen_free(
    moments: list[tuple[str, int, tuple[int, ...], bool, str | None, float]], n: int
) -> None:
    """Whatever happened before: free means a newest sample under the threshold, of nobody's job, and a full count."""
    watch = Watch(Criteria(max_checks=n))
    at, running = 0.0, False
    for what, used, pids, hidden, error, pause in moments:
        at += pause
        if what == "end" and running:
            watch.job_ends(at)
            running = False
            continue
        running = running or (what == "job" and watch.now.state is FREE)
        listed = [process(pid, used // max(1, len(pids))) for pid in pids]
        found = sample(None if error else used, *listed, at=at, hidden=hidden, error=error)
        watch.see(found, ours={7} if running else (), occupied=running, polled=what != "look")
        assert 0 <= watch.now.count <= n
        if watch.now.state is FREE:
            assert not running
            assert not error
            assert used < 500
            assert watch.now.count == n
        if watch.now.state is SETTLING:
            assert watch.now.settling_since is not None
            assert at - watch.now.settling_since <= 30.0
