"""What every source of readings must do: one contract, run on simulated GPUs and on NVML."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Protocol

import pytest

from gpusched.common import simulation
from gpusched.common.errors import EXIT_CANNOT_WORK, EXIT_USAGE, GpuschedError
from gpusched.common.processes import process_start
from gpusched.core.model import MIB, Reading
from gpusched.host.gpus.device_source import DeviceSource, open_source, read_once
from tests.support.rig import Machine, build_rig


class Box(Protocol):
    """A box with four GPUs, the last one of another model, whose state a test changes."""

    source: DeviceSource

    def set(self, n: int, key: str, value: str) -> None: ...

    def occupy(self, n: int, mib: int, pid: int, use: int = 0) -> None: ...

    def fail(self, broken: bool) -> None: ...


class SimulatedBox:
    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        environment = {simulation.ENV_DIRECTORY: self.directory}
        self.source = open_source("3xA100+T4", environment=environment)

    def set(self, n: int, key: str, value: str) -> None:
        simulation.change_keys(f"{self.directory}/gpu{n}/state", **{key: value})

    def occupy(self, n: int, mib: int, pid: int, use: int = 0) -> None:
        path = f"{self.directory}/gpu{n}/p/{pid}-{process_start(pid)}"
        simulation.write_keys(path, {"mib": mib, "user": "bo", "program": "python", "util": use})

    def fail(self, broken: bool) -> None:
        simulation.change_keys(f"{self.directory}/box", fail="the driver is gone" if broken else None)


class NvmlBox:
    KEYS: ClassVar = {
        "hidden": ("pids", {"1": "hidden"}),
        "memory": ("err.nvmlDeviceGetMemoryInfo", {"na": "NOT_SUPPORTED"}),
        "process_util": ("err.nvmlDeviceGetProcessUtilization", {"na": "NOT_SUPPORTED"}),
    }

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.source = open_source(environment=machine.env())

    def set(self, n: int, key: str, value: str) -> None:
        name, values = self.KEYS.get(key, (key, {}))
        modes = {"prohibited": "2", "exclusive_process": "3"}
        self.machine.set(n, f"{name}={values.get(value, modes.get(value, value))}")

    def occupy(self, n: int, mib: int, pid: int, use: int = 0) -> None:
        self.machine.occupy(n, mib, pid, sm=use)

    def fail(self, broken: bool) -> None:
        keys = ("err.nvml=UNINITIALIZED", "init=nodriver") if broken else ("err.nvml=", "init=ok")
        self.machine.set("system", *keys)


@pytest.fixture(params=["simulated", pytest.param("nvml", marks=pytest.mark.slow)])
def box(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    if request.param == "simulated":
        simulated = SimulatedBox(tmp_path / "sim")
        yield simulated
        simulated.source.close()
        return
    rig = build_rig(tmp_path_factory.mktemp("rig"))
    with rig.machine(tmp_path / "m", model="A100,A100,A100,T4") as machine:
        nvml = NvmlBox(machine)
        yield nvml
        nvml.source.close()


def wait_for(source: DeviceSource, now: float = 0.0) -> list[Reading]:
    """The next readings; only the real waiting of a child is real."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if readings := source.poll(max(now, time.time())):
            return readings
        if (fileno := source.fileno()) is not None:
            select.select([fileno], [], [], 1.0)
    raise AssertionError("no reading")


def ask(source: DeviceSource, *uuids: str, now: float = 0.0) -> Reading:
    """All devices, or those."""
    now = max(now, time.time())
    source.request(frozenset(uuids) or None, now)
    (reading,) = wait_for(source, now)
    return reading


def ask_in_vain(source: DeviceSource, now: float) -> GpuschedError:
    """Ask for all devices; return why the source as a whole does not answer."""
    source.request(None, now)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        assert source.poll(now) == []
        if (trouble := source.trouble()) is not None:
            return trouble
        select.select([source.fileno() or 0], [], [], 1.0)
    raise AssertionError("no trouble")


def test_a_complete_reading_lists_the_box(box: Box) -> None:
    before = time.time()
    reading = ask(box.source)
    assert reading.complete
    assert before <= reading.asked_at <= reading.at
    assert [device.index for device in reading.devices] == [0, 1, 2, 3]
    assert [sample.uuid for sample in reading.samples] == [device.uuid for device in reading.devices]
    assert len({device.uuid for device in reading.devices}) == 4
    first, last = reading.devices[0], reading.devices[3]
    assert "A100" in first.name and first.total_bytes == 81920 * MIB
    assert last.name == "Tesla T4" and last.bus_id.startswith("00000000:")
    assert (first.compute_mode, first.mig_parent, first.unified_memory) == ("default", False, False)
    for sample in reading.samples:
        assert (sample.used_bytes, sample.processes, sample.error) == (0, (), None)
        assert (sample.utilisation, sample.memory_includes_reserve) == (0.0, False)
    assert box.source.trouble() is None
    assert box.source.poll(time.time()) == []


def test_single_devices_are_read_without_what_is_dear(box: Box) -> None:
    uuid = ask(box.source).devices[2].uuid
    reading = ask(box.source, uuid)
    (sample,) = reading.samples
    assert (reading.complete, reading.devices, sample.uuid) == (False, (), uuid)
    assert (sample.used_bytes, sample.processes) == (0, ())
    assert (sample.utilisation, sample.energy_j) == (0.0, None)


def test_every_reading_tells_how_much_each_process_works(box: Box) -> None:
    uuid = ask(box.source).devices[1].uuid
    with subprocess.Popen(["sleep", "60"]) as idle, subprocess.Popen(["sleep", "60"]) as working:
        box.occupy(1, 100, idle.pid)
        assert {p.utilisation for p in ask(box.source, uuid).samples[0].processes or ()} == {0.0}
        box.occupy(1, 100, working.pid, use=60)
        for reading in (ask(box.source), ask(box.source, uuid), ask(box.source, uuid)):
            (sample,) = [sample for sample in reading.samples if sample.uuid == uuid]
            used = {process.pid: process.utilisation for process in sample.processes or ()}
            assert used == {idle.pid: 0.0, working.pid: 0.6}
            assert sample.utilisation == 0.6
        box.set(1, "process_util", "na")
        (sample,) = ask(box.source, uuid).samples
        assert {process.utilisation for process in sample.processes or ()} == {None}
        assert (sample.utilisation, sample.error) == (0.6, None)
        idle.kill()
        working.kill()


def test_no_request_is_lost(box: Box) -> None:
    uuids = [device.uuid for device in ask(box.source).devices]
    moments = [time.time() + 0.001 * step for step in range(4)]
    for uuid, moment in zip(uuids, moments, strict=True):
        box.source.request(frozenset([uuid]), moment)
    newest: dict[str, float] = {}
    while set(newest) != set(uuids):
        for reading in wait_for(box.source, moments[-1]):
            newest |= {sample.uuid: reading.asked_at for sample in reading.samples}
    assert all(newest[uuid] >= moment for uuid, moment in zip(uuids, moments, strict=True))


def test_a_question_for_all_covers_the_single_devices_that_wait(box: Box) -> None:
    uuid = ask(box.source).devices[0].uuid
    box.source.request(frozenset([uuid]), time.time())
    box.source.request(frozenset([uuid, "GPU-not-here"]), time.time())
    box.source.request(None, moment := time.time())
    seen: set[str] = set()
    complete = False
    while not (complete and "GPU-not-here" in seen):
        for reading in wait_for(box.source, moment):
            seen |= {sample.uuid for sample in reading.samples}
            complete |= reading.complete and reading.asked_at == moment
    assert uuid in seen


def test_processes_are_told_with_their_memory(box: Box) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        box.occupy(1, 8000, process.pid)
        box.occupy(1, 500, os.getpid())
        sample = ask(box.source).samples[1]
        assert sample.used_bytes == 8500 * MIB
        assert sample.processes is not None
        assert {p.pid: p.used_bytes for p in sample.processes} == {
            process.pid: 8000 * MIB,
            os.getpid(): 500 * MIB,
        }
        assert all(p.kind == "C" and p.user != "?" and p.program != "?" for p in sample.processes)
        process.kill()
    sample = ask(box.source, sample.uuid).samples[0]
    assert sample.used_bytes == 500 * MIB
    assert [p.pid for p in sample.processes or ()] == [os.getpid()]


def test_a_lost_device_leaves_the_others_alone(box: Box) -> None:
    before = ask(box.source)
    box.set(1, "fail", "lost")
    reading = ask(box.source)
    assert [device.uuid for device in reading.devices] == [device.uuid for device in before.devices]
    assert [sample.error for sample in reading.samples] == [None, "lost", None, None]
    assert reading.samples[1].used_bytes is None and reading.samples[1].processes is None
    assert [sample.error for sample in ask(box.source, before.devices[1].uuid).samples] == ["lost"]
    box.set(1, "fail", "ok")
    assert [sample.error for sample in ask(box.source).samples] == [None] * 4


def test_another_error_is_told_in_the_drivers_words(box: Box) -> None:
    box.set(2, "fail", "unknown")
    assert [sample.error for sample in ask(box.source).samples][2] == "Unknown Error"


def test_renumbering_follows_uuids(box: Box) -> None:
    before = [device.uuid for device in ask(box.source).devices]
    box.set(1, "present", "0")
    reading = ask(box.source)
    assert [(device.uuid, device.index) for device in reading.devices] == [
        (before[0], 0),
        (before[2], 1),
        (before[3], 2),
    ]
    assert [sample.error for sample in ask(box.source, before[1]).samples] == ["lost"]
    box.set(1, "present", "1")
    assert [device.uuid for device in ask(box.source).devices] == before


def test_an_unknown_device_is_answered_for(box: Box) -> None:
    (sample,) = ask(box.source, "GPU-not-here").samples
    assert (sample.uuid, sample.error, sample.processes) == ("GPU-not-here", "lost", None)


def test_compute_modes(box: Box) -> None:
    box.set(0, "compute_mode", "prohibited")
    box.set(1, "compute_mode", "exclusive_process")
    modes = [device.compute_mode for device in ask(box.source).devices]
    assert modes == ["prohibited", "exclusive_process", "default", "default"]


def test_hidden_processes_are_not_no_processes(box: Box) -> None:
    box.occupy(1, 8000, os.getpid())
    box.set(1, "hidden", "1")
    sample = ask(box.source).samples[1]
    assert (sample.used_bytes, sample.processes) == (8000 * MIB, None)


def test_memory_that_cannot_be_read_is_not_zero(box: Box) -> None:
    if isinstance(box, SimulatedBox):
        pytest.skip("the memory of a simulated GPU can always be read")
    box.set(1, "memory", "na")
    reading = ask(box.source)
    assert (reading.samples[1].used_bytes, reading.samples[1].total_bytes) == (None, None)
    assert (reading.samples[1].error, reading.devices[1].unified_memory) == (None, False)
    assert reading.samples[0].used_bytes == 0


def test_an_outage_lasts_until_there_is_a_reading(box: Box) -> None:
    ask(box.source)
    box.fail(True)
    now = time.time()
    trouble = ask_in_vain(box.source, now)
    assert trouble.exit_code == EXIT_CANNOT_WORK
    box.source.request(None, now + 2)
    assert box.source.poll(now + 2) == []
    assert box.source.trouble() is not None
    box.fail(False)
    assert len(ask(box.source, now=now + 100).devices) == 4
    assert box.source.trouble() is None


def test_read_once_waits_for_all_devices(box: Box) -> None:
    assert len(read_once(box.source).devices) == 4


def test_read_once_tells_why_it_cannot(box: Box) -> None:
    box.fail(True)
    with pytest.raises(GpuschedError) as caught:
        read_once(box.source)
    assert caught.value.exit_code == EXIT_CANNOT_WORK and "driver" in caught.value.what


def test_read_once_refuses_a_box_without_gpus(box: Box) -> None:
    for n in range(4):
        box.set(n, "present", "0")
    with pytest.raises(GpuschedError, match="lists no GPU") as caught:
        read_once(box.source)
    assert caught.value.exit_code == EXIT_CANNOT_WORK


def test_a_source_says_what_it_is(box: Box) -> None:
    ask(box.source)
    assert "simulated" in box.source.describe() or "NVML" in box.source.describe()


def test_jobs_find_the_same_simulation(tmp_path: Path) -> None:
    first = SimulatedBox(tmp_path / "sim").source
    again = open_source(environment=first.job_environment())
    assert ask(first).devices == ask(again).devices


@pytest.mark.parametrize("spec", ["0", "four", "4xZ80", "65", "2x", "/no/such/place"])
def test_a_wrong_spec_is_a_usage_error(spec: str) -> None:
    with pytest.raises(GpuschedError) as caught:
        open_source(spec, environment={})
    assert caught.value.exit_code == EXIT_USAGE and spec in caught.value.where


@pytest.mark.slow
def test_asking_loads_no_nvml_here() -> None:
    code = "import sys, gpusched.host.gpus.device_source; sys.exit('pynvml' in sys.modules or 'psutil' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
