"""How many workers a GPU gets: by memory, by throughput, by options; on simulated GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.config.settings import SETTINGS
from gpusched.pool.coordinator.growth import ENDED_LOAD, FAILED_LOAD, DeviceGrowth, DeviceLoad, Growth
from tests.support.box import Box
from tests.support.pool import errors, pool, results, write_items, write_worker

WORK = """\
import os, time
from gpusched.common import simulation

class Memory:
    # of this process on its simulated GPU, as a job of simjob has it
    def __init__(self, mib):
        self.mib, self.directory = mib, os.environ["GPUSCHED_SIMULATION"]
        uuid, numbers = os.environ["GPUSCHED_DEVICES"], simulation.gpu_numbers(self.directory)
        paths = {n: simulation.gpu_path(self.directory, n) for n in numbers}
        states = {n: simulation.read_keys(f"{path}/state") for n, path in paths.items()}
        self.gpu = next(n for n, state in states.items() if state["uuid"] == uuid)
        with simulation.locked(self.directory):
            others = simulation.holders(self.directory, self.gpu)
            if sum(each.mib for each in others) + mib > int(states[self.gpu]["total"]):
                simulation.log(self.directory, "oom", gpu=self.gpu)
                raise RuntimeError("CUDA out of memory. Tried to allocate 7.00 GiB")
            job = "/".join(os.environ[f"GPUSCHED_{word}"] for word in ("QUEUE", "JOB_ID", "ATTEMPT"))
            keys = {"mib": mib, "user": "me", "program": "work", "kind": "C", "util": 50, "job": job, "foreign": 0}
            simulation.write_keys(f"{paths[self.gpu]}/p/{simulation.own_name()}", keys)

    def is_alone(self):
        return len(simulation.holders(self.directory, self.gpu)) == 1

def memory_bytes(self):
    return self.memory.mib << 20

def __call__(self, item):
    time.sleep(0.05)
    return [os.environ["GPUSCHED_DEVICES"], os.getpid()]
"""
TAKE = "self.memory = self.Memory(7168)"


# ---- decided ---------------------------------------------------------------------------------------


def grow(rate_of: list[float], limit: int = 4, seconds: int = 200) -> DeviceGrowth:
    """Let a device grow whose items per second are `rate_of[workers]`; workers are ready at once."""
    growth = DeviceGrowth(limit)
    workers, done = 0, 0.0
    for tick in range(seconds * 4):
        workers += growth.missing(DeviceLoad(workers, 0, int(done)), tick / 4)
        done += rate_of[workers] / 4
    return growth


def test_a_device_grows_while_that_pays() -> None:
    assert grow([0, 100, 200, 300, 400]).target == 4
    growth = grow([0, 100, 180, 184, 186])
    assert (growth.target, growth.is_over) == (2, True)
    assert growth.rates == pytest.approx({1: 100, 2: 180, 3: 184}, rel=0.05)
    assert grow([0, 100, 90, 80, 70]).target == 1
    assert grow([0, 100, 200, 300], limit=3).target == 3


def test_few_items_say_nothing_about_a_rate() -> None:
    assert grow([0, 0.1, 0.1, 0.1, 0.1]).target == 4


def test_a_worker_that_could_not_load_beside_others_is_not_added_again() -> None:
    growth = DeviceGrowth(4, target=3)
    growth.note_failed_load(FAILED_LOAD)
    assert [growth.missing(DeviceLoad(2, 0, n * 100), float(n)) for n in range(30)] == [0] * 30
    assert growth.missing(DeviceLoad(1, 0, 9000), 31.0) == 1  # one that has died is replaced


@pytest.mark.parametrize(("points", "times"), [(FAILED_LOAD, 3), (ENDED_LOAD, 20)])
def test_a_device_on_which_no_worker_can_load_is_given_up(points: int, times: int) -> None:
    growth = Growth(2, 4)
    loads = {"good": DeviceLoad(1, 0, 9), "bad": DeviceLoad(0, 1, 0)}
    growth.missing(loads, 0, 100, 0.0)
    for number in range(times):
        assert growth.missing({"good": DeviceLoad(1, 0, 9)}, 0, 100, number / 100) == (0 if number == times else 1, {})
        growth.device("bad").note_failed_load(points)
    assert growth.missing({"good": DeviceLoad(1, 0, 9)}, 0, 100, 1.0) == (0, {})
    assert growth.missing({}, 0, 100, 2.0) == (0, {"good": 1})  # and not anywhere
    assert growth.stable == {"good": 1}
    again = Growth(2, 4, stable={**growth.stable, "bad": 0})
    assert again.missing({"bad": DeviceLoad(0, 0, 0)}, 1, 100, 0.0) == (0, {"bad": 1})


def test_devices_get_their_first_worker_before_any_gets_two() -> None:
    growth = Growth(3, 4)
    assert growth.missing({}, 0, 100, 0.0) == (3, {})
    assert growth.missing({}, 3, 100, 1.0) == (0, {})
    one = {"a": DeviceLoad(1, 0, 0)}
    assert growth.missing(one, 1, 100, 2.0) == (1, {})
    assert growth.missing({}, 0, 2, 0.0) == (2, {})  # no more workers than items


def test_a_stable_count_and_a_fixed_one_are_had_at_once() -> None:
    assert Growth(1, 4, stable={"a": 3}).missing({"a": DeviceLoad(1, 0, 0)}, 0, 100, 0.0) == (0, {"a": 2})
    fixed = Growth(1, 4, workers=4)
    assert fixed.missing({"a": DeviceLoad(0, 1, 0)}, 0, 100, 0.0) == (0, {"a": 3})


def test_fill_first_grows_one_device_after_the_other() -> None:
    growth = Growth(2, 4)
    loads = {"a": DeviceLoad(1, 0, 0), "b": DeviceLoad(1, 0, 0)}
    growth.missing(loads, 0, 100, 0.0)
    loads = {"a": DeviceLoad(1, 0, 100), "b": DeviceLoad(1, 0, 100)}
    assert growth.missing(loads, 0, 100, 5.0, one_by_one=True) == (0, {"a": 1})


# ---- done ------------------------------------------------------------------------------------------


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, "2xRTX3090") as box:
        write_worker(box, WORK, setup=TAKE)
        yield box


def workers_by_gpu(box: Box) -> list[int]:
    """How many workers have worked on each GPU, in the order of the GPUs."""
    pairs = {tuple(row["result"]) for row in results(box)}
    count = Counter(device for device, _ in pairs)
    return [count[box.uuid(n)] for n in range(2)]


@pytest.mark.slow
def test_three_workers_of_7_gib_fit_on_24(box: Box) -> None:
    write_items(box, 900)
    ended = pool(box, "--mem", "7G").wait(120)
    assert ended.code == 0, ended.text
    assert workers_by_gpu(box) == [3, 3]
    assert box.audit().ooms == 0


@pytest.mark.slow
def test_beside_a_colleague_fewer_fit(box: Box) -> None:
    box.colleague(1, 9 * 1024, util=0)
    write_items(box, 900)
    ended = pool(box, "--mem", "7G", GPUSCHED_GPU_MEM_THRESHOLD="10000").wait(120)
    assert ended.code == 0, ended.text
    assert workers_by_gpu(box) == [3, 2]


@pytest.mark.soak
@pytest.mark.slow
def test_a_fixed_number_of_workers_and_its_limit(box: Box) -> None:
    write_items(box, 200)
    assert pool(box, "--mem", "7G", "--workers-per-gpu", "2").wait(120).code == 0
    assert workers_by_gpu(box) == [2, 2]
    assert pool(box, "--mem", "7G", "--max-workers-per-gpu", "1", "--overwrite").wait(120).code == 0
    assert workers_by_gpu(box) == [1, 1]


@pytest.mark.slow
def test_an_item_that_wants_the_gpu_for_itself_gets_it_at_the_end(box: Box) -> None:
    body = (
        WORK
        + """\
def __call__(self, item):
    time.sleep(0.05)
    if item == '5' and not self.memory.is_alone():
        raise RuntimeError('CUDA out of memory. Tried to allocate 9.00 GiB')
    return [os.environ["GPUSCHED_DEVICES"], os.getpid()]
"""
    )
    write_worker(box, body, setup=TAKE)
    write_items(box, 120)
    ended = pool(box, "--mem", "7G", "--workers-per-gpu", "3").wait(120)
    assert ended.code == 0, ended.text
    assert len(results(box)) == 120
    assert not errors(box)


@pytest.mark.soak
@pytest.mark.slow
def test_a_stable_count_is_had_at_once_by_the_next_run(box: Box) -> None:
    write_items(box, 900)
    assert pool(box, "--mem", "7G").wait(120).code == 0
    write_items(box, 960)
    assert pool(box, "--mem", "7G").wait(120).code == 0
    late = {tuple(row["result"]) for row in results(box)[900:]}
    assert len(late) > 2  # growth alone takes longer than these items


@pytest.mark.slow
def test_a_worker_that_finds_no_memory_is_not_added_again_and_the_pool_goes_on(box: Box) -> None:
    write_items(box, 400)
    body = (
        WORK
        + """\
def fail_as_third(self):
    with open('loads.txt', 'a') as file:
        file.write('x')
    if os.path.getsize('loads.txt') > 2:
        raise RuntimeError('CUDA out of memory. Tried to allocate 7.00 GiB')
"""
    )
    write_worker(box, body, setup="self.fail_as_third(); " + TAKE)
    ended = pool(box, "--mem", "7G", "--max-gpus", "1").wait(120)
    assert ended.code == 0, ended.text
    assert sorted(workers_by_gpu(box)) == [0, 2]
    assert len(box.read("loads.txt")) == 3


@pytest.mark.slow
def test_a_gpu_on_which_no_worker_can_load_is_given_up_and_the_others_go_on(box: Box) -> None:
    write_items(box, 200)
    setup = f"open('loads.txt', 'a').write('x'); 1 / (os.environ['GPUSCHED_DEVICES'] != '{box.uuid(1)}'); " + TAKE
    write_worker(box, WORK, setup=setup)
    ended = pool(box, "--mem", "7G", "--max-workers-per-gpu", "1").wait(120)
    assert ended.code == 0, ended.text
    assert workers_by_gpu(box) == [1, 0]
    assert len(box.read("loads.txt")) <= 1 + 4  # one of the three may have begun twice as it was the first on both
    assert len(box.jobs("out")) <= 1 + 3  # a worker that is added again is the same job


@pytest.mark.slow
def test_loads_that_fail_once_each_gpu_has_had_a_worker_end_the_pool(box: Box) -> None:
    write_items(box, 400)
    die = "    if int(item) > 60:\n        open('gone', 'w').close()\n        os.kill(os.getpid(), 9)\n"
    setup = "1 / (not os.path.exists('gone')); " + TAKE
    write_worker(box, WORK.replace("    return [", f"{die}    return ["), setup=setup)
    ended = pool(box, "--mem", "7G").wait(60)
    assert ended.code == 1, ended.text
    assert "stopped  no worker can load: ZeroDivisionError" in ended.out, ended.text
    assert len(results(box)) >= 60 - 2


# ---- memory that is learned --------------------------------------------------------------------------

learns = pytest.mark.skipif("safety_factor" not in SETTINGS, reason="jobs cannot learn their memory yet")


@learns
@pytest.mark.slow
@pytest.mark.parametrize("hidden", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_memory_is_learned_for_three_workers(box: Box, hidden: int) -> None:
    for number in (0, 1):
        box.set_gpu(number, hidden=hidden)  # the driver tells processes not apart: they report their memory
    write_worker(box, WORK, setup=TAKE.replace("7168", "7000"))
    write_items(box, 1200)
    ended = pool(box).wait(120)
    assert ended.code == 0, ended.text
    assert workers_by_gpu(box) == [3, 3]
    assert box.audit().ooms == 0


@learns
@pytest.mark.soak
@pytest.mark.slow
def test_memory_is_learned_beside_a_colleague(box: Box) -> None:
    box.colleague(1, 9 * 1024, util=0)
    write_items(box, 900)
    ended = pool(box, GPUSCHED_GPU_MEM_THRESHOLD="10000").wait(120)
    assert ended.code == 0, ended.text
    assert workers_by_gpu(box)[1] == 1


@learns
@pytest.mark.slow
@pytest.mark.parametrize("hidden", [0, 1])
def test_workers_that_use_no_gpu_memory_join_where_the_driver_says_so(box: Box, hidden: int) -> None:
    for number in (0, 1):
        box.set_gpu(number, hidden=hidden)
    write_worker(box, WORK.replace("self.memory.mib << 20", "0"))
    write_items(box, 400)
    ended = pool(box).wait(120)
    assert ended.code == 0, ended.text
    assert workers_by_gpu(box) == [1, 1] if hidden else min(workers_by_gpu(box)) >= 2
    assert "times, ready on 2 of the 2 GPUs it held, after" in ended.out
    assert (" on GPU 0" in ended.out and " on GPU 1" in ended.out) and "GPU-" not in ended.out
