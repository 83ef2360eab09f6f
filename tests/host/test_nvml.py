"""NVML's own adapter, run with the real nvidia-ml-py on a simulated driver: what drivers and boxes do differently."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.processes import process_start
from gpusched.core.model import MIB, Reading
from gpusched.host.gpus.device_source import DeviceSource, open_source, read_once
from gpusched.host.gpus.nvml import People, Reader
from gpusched.host.gpus.nvml_source import NvmlSource
from tests.support.rig import GENERATIONS, Machine, Rig, build_rig

pytestmark = pytest.mark.slow  # each starts a process


@pytest.fixture
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return build_rig(tmp_path_factory.mktemp("rig"))


@pytest.fixture
def machine(rig: Rig, tmp_path: Path) -> Iterator[Machine]:
    """Two GPUs."""
    with rig.machine(tmp_path / "m", gpus=2, model="H100,T4") as machine:
        yield machine


@pytest.fixture
def source(machine: Machine) -> Iterator[NvmlSource]:
    source = NvmlSource(10.0, machine.env())
    yield source
    source.close()


def ask(source: DeviceSource, *uuids: str, now: float = 0.0) -> Reading:
    now = max(now, time.time())
    source.request(frozenset(uuids) or None, now)
    return hear(source, now)


def ask_in_vain(source: DeviceSource, now: float) -> str:
    """Ask for all devices; return why the source as a whole does not answer."""
    source.request(None, now)
    end = time.monotonic() + 10
    while time.monotonic() < end and source.trouble() is None:
        assert source.poll(now) == []
        select.select([source.fileno() or 0], [], [], 0.1)
    trouble = source.trouble()
    assert trouble is not None
    return trouble.what


def hear(source: DeviceSource, now: float) -> Reading:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if readings := source.poll(now):
            (reading,) = readings
            return reading
        fileno = source.fileno()
        assert fileno is not None
        select.select([fileno], [], [], 1.0)
    raise AssertionError("no reading")


def child_pid(source: NvmlSource) -> int:
    assert source._child is not None
    return source._child.process.pid


# ---- boxes


def test_a_mixed_box_in_the_order_of_the_bus(rig: Rig, tmp_path: Path) -> None:
    with rig.machine(tmp_path / "m", gpus=8, model="T4,H100,RTX3090,A100", cuda_order="1,5,3,7,2,6,0,4") as machine:
        source = open_source(environment=machine.env())
        reading = ask(source)
        assert [device.name for device in reading.devices][:4] == [
            "Tesla T4",
            "NVIDIA H100 80GB HBM3",
            "NVIDIA GeForce RTX 3090",
            "NVIDIA A100-SXM4-80GB",
        ]
        assert [device.uuid for device in reading.devices] == [machine.uuid(n) for n in range(8)]
        assert [device.total_bytes for device in reading.devices][:2] == [15360 * MIB, 81559 * MIB]
        assert reading.devices[3].reserved_bytes == 904 * MIB  # which no process can have, and which is not used either
        assert [device.bus_id for device in reading.devices] == sorted(d.bus_id for d in reading.devices)
        assert source.describe() == "NVML 12.570.86.15, driver 570.86.15"
        source.close()


def test_boards_at_one_numa_node_are_a_group(rig: Rig, tmp_path: Path) -> None:
    """This driver knows no NVLink."""
    with rig.machine(tmp_path / "m", gpus=4, model="T4") as machine:
        machine.set("all", "numa=0")
        machine.set(2, "numa=1")
        source = open_source(environment=machine.env())
        groups = ["NUMA 0", "NUMA 0", "", "NUMA 0"]
        assert [device.group for device in ask(source).devices] == groups
        machine.set("all", "err.nvmlDeviceGetTopologyCommonAncestor=FUNCTION_NOT_FOUND")
        assert [device.group for device in ask(source).devices] == groups  # asked once
        source.close()
        source = open_source(environment=machine.env())
        assert [device.group for device in ask(source).devices] == [""] * 4
        source.close()


def test_the_drivers_reserve_is_not_in_use(machine: Machine, source: NvmlSource) -> None:
    machine.set(0, "reserved=904")
    assert [sample.used_bytes for sample in ask(source).samples] == [0, 0]


def test_complete_readings_have_all_that_the_board_tells(machine: Machine, source: NvmlSource) -> None:
    machine.set(0, "util=77", "temp=64", "power_mw=250500")
    machine.set(1, "util=na", "energy_w=na", "temp=na", "power_mw=na")
    told, silent = ask(source).samples
    assert told.utilisation == 0.77
    assert told.energy_j is not None
    assert (told.temperature_c, told.power_w, silent.temperature_c, silent.power_w) == (64, 250.5, None, None)
    assert (silent.utilisation, silent.energy_j) == (None, None)
    assert silent.error is None and silent.used_bytes == 0


def test_work_of_a_process_that_is_not_listed_makes_that_of_idle_ones_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may name processes of a container by other pids in its list of who has worked."""
    worked: list[tuple[int, int, int]] = []  # pid, use of the cores and of the decoder

    def records(handle: object, since_us: int) -> list[SimpleNamespace]:
        assert time.time() - since_us / 1e6 == pytest.approx(2, abs=1)
        return [SimpleNamespace(pid=pid, smUtil=use, encUtil=0, decUtil=coded) for pid, use, coded in worked]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", records)
    reader = Reader.__new__(Reader)
    reader._read_us = {}
    listed: list[dict[str, Any]] = [{"pid": 5}, {"pid": 6}]
    for worked_now, expected in (
        ([(5, 30, 0), (5, 10, 70), (6, 4_000_000, 0)], [0.7, 0.0]),  # the last one was never filled
        ([(5, 30, 0), (900, 50, 0)], [0.3, None]),
        ([(900, 0, 0)], [0.0, 0.0]),
    ):
        worked[:] = worked_now
        reader._add_utilisation("GPU-a", None, listed, whole=False)
        assert [process["utilisation"] for process in listed] == expected


@pytest.mark.parametrize("code", ["UNKNOWN", "NO_PERMISSION", "FUNCTION_NOT_FOUND", "INVALID_ARGUMENT"])
def test_a_gpu_is_read_although_the_work_of_its_processes_is_not_told(
    machine: Machine, source: NvmlSource, code: str
) -> None:
    machine.occupy(0, 400, sm=30)
    machine.set(0, f"err.nvmlDeviceGetProcessUtilization={code}")
    sample = ask(source).samples[0]
    assert [(p.pid, p.utilisation) for p in sample.processes or ()] == [(os.getpid(), None)]
    assert (sample.used_bytes, sample.utilisation, sample.error) == (400 * MIB, 0.3, None)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_three_generations_of_drivers(machine: Machine, generation: str) -> None:
    source = open_source(environment=machine.env(generation))
    machine.occupy(0, 8000)
    with subprocess.Popen(["sleep", "60"]) as other:
        machine.occupy(0, 300, other.pid)
        sample = ask(source).samples[0]
        other.kill()
    processes = {p.pid: p.used_bytes for p in sample.processes or ()}
    assert processes == {os.getpid(): 8000 * MIB, other.pid: 300 * MIB}
    old = generation == "r470"
    assert sample.memory_includes_reserve is old
    assert sample.used_bytes == (8300 + (551 if old else 0)) * MIB
    source.close()


def test_memory_v1_where_there_is_no_v2(machine: Machine, source: NvmlSource) -> None:
    machine.set("all", "err.nvmlDeviceGetMemoryInfo_v2=FUNCTION_NOT_FOUND")
    for sample in (*ask(source).samples, *ask(source, machine.uuid(0)).samples):
        assert sample.memory_includes_reserve and sample.used_bytes in (551 * MIB, 280 * MIB)
        assert sample.processes == ()


@pytest.mark.parametrize(
    ("name", "unified"), [("NVIDIA GB10", True), ("NVIDIA Jetson AGX Orin", True), ("NVIDIA A5000", False)]
)
def test_unified_memory_is_known_by_name(machine: Machine, source: NvmlSource, name: str, unified: bool) -> None:
    machine.set(0, f"name={name}", "err.nvmlDeviceGetMemoryInfo=NOT_SUPPORTED")
    machine.occupy(0, 0)
    reading = ask(source)
    device, sample = reading.devices[0], reading.samples[0]
    assert (device.unified_memory, device.total_bytes) == (unified, None)
    assert (sample.used_bytes, sample.total_bytes, sample.error) == (None, None, None)
    assert [p.pid for p in sample.processes or ()] == [os.getpid()]


def test_mig_instances_are_devices(rig: Rig, tmp_path: Path) -> None:
    with rig.machine(tmp_path / "m", gpus=2, model="A100", mig="0:1g.10gb,3g.40gb") as machine:
        source = open_source(environment=machine.env())
        machine.occupy(0, 3000, gi=2, ci=0)
        reading = ask(source)
        assert [(d.index, d.mig_parent, d.is_mig) for d in reading.devices] == [
            (0, True, False),
            (0, False, True),
            (0, False, True),
            (1, False, False),
        ]
        parent, small, large, _ = reading.devices
        assert small.parent_uuid == large.parent_uuid == parent.uuid == machine.uuid(0)
        assert small.name == "NVIDIA A100-SXM4-80GB MIG 1g.10gb" and small.uuid.startswith("MIG-")
        assert (small.total_bytes, large.total_bytes) == (10000 * MIB, 40000 * MIB)
        assert [sample.used_bytes for sample in reading.samples][1:3] == [0, 3000 * MIB]
        assert [len(sample.processes or ()) for sample in reading.samples][1:3] == [0, 1]
        assert ask(source, large.uuid).samples[0].used_bytes == 3000 * MIB
        machine.run("mig", 0)
        assert [d.mig_parent for d in ask(source).devices] == [False, False]
        source.close()


def test_a_gpu_that_is_lost_from_the_start_has_no_name(machine: Machine, source: NvmlSource) -> None:
    machine.run("lose", 0)
    reading = ask(source)
    assert [(d.uuid, d.index) for d in reading.devices] == [("unknown-0", 0), (machine.uuid(1), 1)]
    assert [sample.error for sample in reading.samples] == ["lost", None]


def test_a_lost_gpu_is_known_by_a_fresh_child_too(machine: Machine, source: NvmlSource) -> None:
    before = ask(source).devices
    machine.run("lose", 0)
    source._abandon()
    reading = ask(source)
    assert reading.devices == before and reading.samples[0].error == "lost"


def test_a_gpu_that_fails_after_its_name_was_told(machine: Machine, source: NvmlSource) -> None:
    before = ask(source).devices
    machine.set(0, "err.nvmlDeviceGetMemoryInfo=GPU_IS_LOST", "err.nvmlDeviceGetComputeMode=GPU_IS_LOST")
    reading = ask(source)
    assert [d.uuid for d in reading.devices] == [d.uuid for d in before]
    assert [sample.error for sample in reading.samples] == ["lost", None]


# ---- processes


def test_pids_of_another_namespace_cannot_be_told_apart(machine: Machine, source: NvmlSource) -> None:
    machine.occupy(0, 8000)
    machine.set("system", "pids=shift:4000000")
    sample = ask(source).samples[0]
    assert (sample.used_bytes, sample.processes) == (8000 * MIB, None)


def test_memory_of_nobody_is_memory_of_somebody_hidden(machine: Machine, source: NvmlSource) -> None:
    machine.set(0, "foreign=12000")
    machine.set(1, "foreign=20")
    assert [sample.processes for sample in ask(source).samples] == [None, ()]


def test_memory_per_process_may_be_unknown(machine: Machine, source: NvmlSource) -> None:
    machine.occupy(0, 8000)
    machine.set("system", "procmem=na")
    assert [(p.pid, p.used_bytes) for p in ask(source).samples[0].processes or ()] == [(os.getpid(), None)]


@pytest.mark.parametrize("kind", ["C", "G", "M"])
def test_kinds_of_processes(machine: Machine, source: NvmlSource, kind: str) -> None:
    machine.occupy(0, 100, kind=kind)
    assert [p.kind for p in ask(source).samples[0].processes or ()] == [kind]


def test_lists_that_this_driver_does_not_have(machine: Machine, source: NvmlSource) -> None:
    machine.occupy(0, 100)
    machine.set("all", "err.nvmlDeviceGetMPSComputeRunningProcesses=FUNCTION_NOT_FOUND")
    machine.set(1, "err.nvmlDeviceGetComputeRunningProcesses=NO_PERMISSION")
    told, closed = ask(source).samples
    assert told.processes is not None and len(told.processes) == 1
    assert closed.processes is None and closed.error is None


def test_many_processes(machine: Machine, source: NvmlSource) -> None:
    children = [subprocess.Popen(["sleep", "60"]) for _ in range(70)]
    for child in children:
        machine.occupy(0, 1, child.pid)
    sample = ask(source).samples[0]
    for child in children:
        child.kill()
        child.wait()
    assert {p.pid for p in sample.processes or ()} == {child.pid for child in children}


def test_the_dead_stay_known_until_their_memory_is_back(machine: Machine, source: NvmlSource) -> None:
    machine.set("system", "release_ms=60000", "ghost=1")
    with subprocess.Popen(["sleep", "60"]) as process:
        machine.occupy(0, 8000, process.pid)
        ask(source)
        process.kill()
    sample = ask(source, machine.uuid(0)).samples[0]
    assert sample.used_bytes == 8000 * MIB
    assert [(p.pid, p.program) for p in sample.processes or ()] == [(process.pid, "sleep")]


def test_programs_are_named_without_their_secrets(tmp_path: Path) -> None:
    script = tmp_path / "train\x1b.py"
    script.write_text("import time\ntime.sleep(60)")
    for command, name in (
        ([sys.executable, str(script), "--hub_token", "hf_secret"], "train?.py"),
        ([sys.executable, "-c", "import time; time.sleep(60) # hf_secret"], os.path.basename(sys.executable)),
        (["sleep", "60"], "sleep"),
    ):
        with subprocess.Popen(command) as process:
            people = People()
            who = people.of(process.pid)
            end = time.monotonic() + 5
            while who is not None and name not in who["program"] and time.monotonic() < end:
                people.forget_unlisted()
                people.forget_unlisted()
                who = people.of(process.pid)
            process.kill()
        assert who is not None and who["program"].endswith(name) and "secret" not in who["program"]
        assert who["user"]


PEOPLE = """
import os, subprocess, time
from gpusched.host.gpus.nvml import People, Reader

def start():
    time.sleep(0.05)
    process = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    time.sleep(0.05)
    return process

older, people = start(), People()
for _ in range(2):  # a process that began before anybody looked may be another one than the driver lists
    assert (people.of(older.pid) is not None) is FIRST
    people.forget_unlisted()
ours = start()
assert people.of(ours.pid + 1) is None  # listed before such a process began here
other = start()
assert other.pid == ours.pid + 1 and people.of(other.pid) is None
people.forget_unlisted()
assert people.of(other.pid) is None
assert people.of(ours.pid)["program"] == "sleep"
for process in (older, ours, other):
    process.kill()
print("good")
"""


@pytest.mark.parametrize("is_first", [True, False])
def test_a_pid_that_may_be_of_another_namespace_is_unknown(is_first: bool) -> None:
    """In a namespace of its own, where pids follow each other; it passes for the first one where that is asked for."""
    script = PEOPLE.replace("FIRST", str(is_first))
    if is_first:
        script = f"from gpusched.common import processes; processes.is_first_pid_namespace = lambda: True\n{script}"
    isolated = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespace can be made here")
    done = subprocess.run([*isolated, sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "good\n", done.stderr


# ---- NVML that does not work


@pytest.mark.parametrize(
    ("init", "words", "hint"),
    [
        ("mismatch", "differ in version", "reboot, or reload"),
        ("nodriver", "driver is not loaded", "nvidia-smi"),
        ("noperm", "no permission", "/dev/nvidia"),
        ("UNKNOWN", "NVML does not work: Unknown Error", ""),
    ],
)
def test_why_it_cannot_begin(machine: Machine, source: NvmlSource, init: str, words: str, hint: str) -> None:
    machine.set("system", f"init={init}")
    with pytest.raises(GpuschedError, match=words) as caught:
        read_once(source)
    assert hint in caught.value.hint and caught.value.exit_code == EXIT_CANNOT_WORK


def test_a_box_without_a_driver() -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this box has a driver")
    source = open_source(environment=dict(os.environ))
    with pytest.raises(GpuschedError, match="no NVIDIA driver library") as caught:
        read_once(source)
    assert "--simulate" in caught.value.hint and caught.value.exit_code == EXIT_CANNOT_WORK
    source.close()


def test_a_fresh_init_in_the_same_child(machine: Machine, source: NvmlSource) -> None:
    ask(source)
    pid = child_pid(source)
    machine.set("system", "err.nvmlDeviceGetCount=UNINITIALIZED@2")
    for _ in range(4):
        assert ask(source).complete
    assert child_pid(source) == pid


def test_a_driver_that_goes_is_told_and_tried_again_slowly(machine: Machine, source: NvmlSource) -> None:
    ask(source)
    machine.set("system", "err.nvml=DRIVER_NOT_LOADED", "init=mismatch")
    now = time.time() + 5
    assert ask_in_vain(source, now) == "the NVIDIA driver and its library differ in version"
    for pause in (15.0, 30.0, 60.0, 60.0):
        source.request(None, now)
        assert source.deadline() == now + pause
        assert source.poll(now + pause - 1) == []
        now += pause
        assert source.poll(now) == []
        while source._child is not None:  # the new one fails too, which is not told again
            select.select([source.fileno()], [], [], 1.0)
            assert source.poll(now) == []
    machine.set("system", "err.nvml=", "init=ok")
    assert len(ask(source, machine.uuid(1), now=now + 60).samples) == 2  # the question for all was not lost
    assert source.trouble() is None


def test_a_call_that_does_not_return(machine: Machine, source: NvmlSource) -> None:
    ask(source)
    machine.set(0, "slow_ms=600000")
    now = time.time()
    source.request(frozenset([machine.uuid(0)]), now)
    assert source.deadline() == now + 10
    source.request(None, now + 2)
    assert source.poll(now + 9.9) == []
    hung = child_pid(source)
    assert source.poll(now + 10) == []
    trouble = source.trouble()
    assert trouble is not None and trouble.what == "NVML has not answered for 10 s" and "dmesg" in trouble.hint
    assert source.poll(now + 11) == []
    assert source.deadline() == now + 25
    machine.set(0, "slow_ms=0")
    source.poll(now + 25)
    reading = hear(source, now + 25)
    assert (reading.complete, reading.asked_at, len(reading.samples)) == (True, now + 2, 2)
    assert source.trouble() is None and child_pid(source) != hung
    source.poll(now + 26)
    assert source._dying == []


def test_a_first_answer_may_take_longer(machine: Machine, source: NvmlSource) -> None:
    machine.set("system", "init_ms=600000")
    now = time.time()
    source.request(None, now)
    assert source.deadline() == now + 30
    assert source.poll(now + 29) == []
    assert source.poll(now + 30) == [] and "NVML has not answered for 30 s" in str(source.trouble())


def test_a_child_that_somebody_ends_is_replaced(machine: Machine, source: NvmlSource) -> None:
    ask(source)
    os.kill(child_pid(source), signal.SIGKILL)
    now = time.time() + 60  # it had worked for long
    assert ask(source, now=now).complete
    os.kill(child_pid(source), signal.SIGKILL)
    assert ask_in_vain(source, now + 1) == "the NVML helper process ended unexpectedly"


def test_an_outage_between_two_questions_is_trouble_too(source: NvmlSource) -> None:
    ask(source)
    os.kill(child_pid(source), signal.SIGKILL)
    select.select([source.fileno()], [], [], 10.0)
    assert source.poll(time.time()) == [] and "ended unexpectedly" in str(source.trouble())


def test_a_box_with_nothing_readable_gets_a_fresh_start_now_and_then(machine: Machine, source: NvmlSource) -> None:
    ask(source)
    first = child_pid(source)
    machine.run("lose", "0")
    machine.run("lose", "1")
    now = time.time()
    assert {sample.error for sample in ask(source, now=now).samples} == {"lost"}
    assert child_pid(source) == first
    ask(source, now=now + 20)
    assert len(ask(source, now=now + 21).samples) == 2
    assert child_pid(source) != first


# ---- the child


def test_the_child_inherits_nothing_and_is_alone(machine: Machine, tmp_path: Path) -> None:
    with open(tmp_path / "claim", "w") as claim:
        os.set_inheritable(claim.fileno(), True)
        source = NvmlSource(10.0, machine.env())
        ask(source)
        pid = child_pid(source)
        opened = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        assert not [path for path in opened if path.startswith(str(tmp_path / "claim"))]
        assert len([path for path in opened if path.startswith("socket:")]) == 1
        assert os.getsid(pid) == pid
        fileno = source.fileno()
        source._abandon()
        ask(source)
        assert source.fileno() == fileno
        source.close()
        assert not os.path.exists(f"/proc/{pid}")


def test_the_child_ends_with_its_parent(machine: Machine) -> None:
    code = (
        "import os, time\n"
        "from gpusched.host.gpus.device_source import open_source, read_once\n"
        "source = open_source(); read_once(source)\n"
        "print(source._child.process.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=machine.env(), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    end = time.monotonic() + 5
    while process_start(pid) is not None:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_polling_eight_gpus_costs_little(rig: Rig, tmp_path: Path) -> None:
    with rig.machine(tmp_path / "m", gpus=8) as machine:
        source = NvmlSource(10.0, machine.env())
        for n in range(8):
            machine.occupy(n, 8000)
        ask(source)

        def ticks() -> int:
            fields = Path(f"/proc/{child_pid(source)}/stat").read_text().rpartition(")")[2].split()
            return int(fields[11]) + int(fields[12])

        before, own = ticks(), time.process_time()
        for _ in range(50):
            ask(source)
        spent = (ticks() - before) / os.sysconf("SC_CLK_TCK") + time.process_time() - own
        assert spent / 50 < 0.02  # 1 % of a core at a poll each 2 s; 0.003 is usual, and half of it the rig's own
        source.close()


@pytest.mark.parametrize(
    "answer", [b"[" * 100_000, b"[1, 2]", b'{"versions": 1}', b'{"devices": [{"uuid": 1e999}]}', b"\xff", b"7"]
)
def test_an_answer_that_is_none_is_an_outage(answer: bytes) -> None:
    """Whatever the child sends: the source tells an outage, and never raises."""
    source = NvmlSource(10.0, {})
    try:
        source.request(None, 0.0)
        child = source._child
        assert child is not None
        child.process.kill()
        child.buffer = answer + b"\n"
        assert source.poll(0.1) == []
        assert source.trouble() is not None
    finally:
        source.close()
