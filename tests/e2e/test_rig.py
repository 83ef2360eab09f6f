"""`gpusched run` through NVML's own adapter on a simulated driver: what shared, mixed and failing boxes do."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.box import GPUSCHED, UNTIL_GO, Box, Running, wait_for
from tests.support.other_user import interpreter_for_all, shared_directory
from tests.support.rig import Machine, Rig, build_rig

pytestmark = pytest.mark.slow

# gpusched with shorter patience for a driver that fails or hangs
IMPATIENT = [
    GPUSCHED[0],
    "-c",
    "from gpusched.host.gpus import device_source, nvml_source\n"
    "nvml_source.RETRY_S = (0.3, 0.3, 0.3)\n"
    "device_source.open_source.__kwdefaults__['timeout_s'] = 1.0\n"
    "from gpusched.cli.main import main\n"
    "main()",
]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return build_rig(tmp_path_factory.mktemp("rig"))


class Rigged(Box):
    """A box whose GPUs are those of a simulated driver."""

    def __init__(self, root: Path, machine: Machine, generation: str = "", **environment: str) -> None:
        found = machine.env(generation)
        names = ("FAKE_NVML_DIR", "LD_LIBRARY_PATH")
        super().__init__(root, gpus="", environment={**{name: found[name] for name in names}, **environment})
        self.machine = machine
        self.alloc = f"{sys.executable} -S {machine.tools}/fakegpu alloc"

    def job(self, mib: int, options: str = "--hold 0.1") -> str:
        return f"{self.alloc} {mib} {options}"

    def landed(self, name: str = "list") -> list[tuple[list[str], list[str]]]:
        """For each job: UUIDs of the devices that it was given, and of those on which it allocated."""
        found = []
        for row in self.jobs(name):
            said = [line.split() for line in row.said().splitlines() if line.startswith("fakegpu: pid")]
            found.append(([device.uuid for device in row.last.devices], [words[-1] for words in said]))
        return found


def make(rig: Rig, tmp_path: Path, **options: Any) -> Machine:
    return rig.machine(tmp_path / "machine", **options)


def clean(machine: Machine) -> bool:
    found = machine.audit()
    return not found["clashes"] and not found["started_before_release"]


@pytest.fixture
def pair(rig: Rig, tmp_path: Path) -> Iterator[Rigged]:
    """A box with two H100."""
    with make(rig, tmp_path, gpus=2) as machine, Rigged(tmp_path / "box", machine) as box:
        yield box


def test_jobs_for_real_gpus_are_never_started_as_if_those_were_simulated(pair: Rigged) -> None:
    running = pair.start("run", pair.write(pair.job(1000, "--hold 60"), pair.job(1000), pair.job(1000)))
    wait_for(lambda: pair.running() == 2)
    running.signal(signal.SIGTERM)
    running.wait()
    refused = pair.gpusched("run", "list.txt", "--simulate", "4")
    assert refused.code == 2 and "has jobs for the GPUs of this box, and --simulate would start" in refused.err
    assert "queued" in pair.states() and "running" not in pair.states() and len(pair.states()) == 3
    pair.write(pair.job(1000), "true # new")
    assert pair.gpusched("run", "list.txt", "--simulate", "4").code == 2
    assert len(pair.states()) == 3, "what is refused changes nothing"
    assert pair.gpusched("submit", "--no-start", pair.job(1000, "--hold 60")).code == 0
    assert pair.gpusched("start", "--detach", "-q", "default", "--max-checks", "1", "--poll-interval", "0.1").code == 0
    wait_for(lambda: "1 running" in pair.gpusched("status", "default").out)
    pair.gpusched("stop", "--now", "-q", "default")
    wait_for(lambda: "1 queued" in pair.gpusched("status", "default").out)
    refused = pair.gpusched("start", "--detach", "-q", "default", "--simulate", "2")
    assert refused.code == 2 and "leave --simulate out, or simulate GPUs for another queue: -q NAME" in refused.err
    assert pair.gpusched("cancel", "--all", "-q", "default").code == 0
    assert pair.gpusched("start", "--detach", "-q", "default", "--simulate", "2", "--max-checks", "1").code == 0
    job = pair.gpusched("submit", "-q", "default", "true").out.split()[0]  # before the dispatcher has looked
    assert pair.gpusched("wait", f"default/{job}").code == 0
    assert "simulated" in pair.gpusched("status", "default").text
    assert pair.gpusched("stop", "-q", "default").code == 0


def test_jobs_that_have_ended_bar_no_simulation(pair: Rigged) -> None:
    words = ("run", pair.write("exit 3"), "--max-checks", "1")
    for more in (("--simulate", "2"), (), ("--simulate", "2", "--retry-failed")):
        assert pair.gpusched(*words, *more).code == 1
    assert [row.outcome for row in pair.jobs()] == ["exited 3"] and len(pair.jobs()[0].attempts) == 2


def test_eight_gpus_two_colleagues_forty_jobs(rig: Rig, tmp_path: Path) -> None:
    with make(rig, tmp_path, gpus=8, release_ms=50) as machine, Rigged(tmp_path / "box", machine) as box:
        machine.start("hold", 2, 4000, "--hold", 300)
        machine.start("hold", 5, 30000, "--hold", 300)
        ended = box.run(*[box.job(1000 + n, "--hold 0.05") for n in range(40)], options="--max-gpus 8")
        assert ended.code == 0, ended.text
        assert box.states() == ["succeeded"] * 40
        assert clean(machine)
        given = {uuid for devices, _ in box.landed() for uuid in devices}
        assert given == {machine.uuid(n) for n in (0, 1, 3, 4, 6, 7)}
        assert all(devices == where for devices, where in box.landed())
        assert box.claimed() == set()


COMING = """
import os, subprocess, sys
from gpusched import api
from gpusched.config.layers import load
from gpusched.dispatcher import Hooks
from gpusched.lists.submit import SubmitOptions, read
from gpusched.operations.run.run import RunQueue
settings = load().settings
options = SubmitOptions(settings, os.fsencode(os.getcwd()))
queue = RunQueue.for_file("list.txt", settings)
queue.submit(read(open("list.txt", "rb").read(), options, "list.txt"), options)
colleagues = []
def at(step):
    if step == "claim" and not colleagues:
        colleagues.append(subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE))
        colleagues[0].stdout.readline()
with api.open_devices(settings) as devices:
    code = queue.dispatch(options, devices, hooks=Hooks(step=at))
colleagues[0].kill()
sys.exit(code)
"""


@pytest.mark.parametrize(("mib", "util"), [(3000, 0), (490, 95)])
def test_a_colleague_who_comes_between_check_and_launch(pair: Rigged, mib: int, util: int) -> None:
    pair.write(pair.job(1000))
    fakegpu = [sys.executable, f"{pair.machine.tools}/fakegpu", "hold", str(pair.machine.directory)]
    words = ["-c", COMING, *fakegpu, "0", str(mib), "--hold", "60", "--util", str(util)]
    ended = pair.spawn(*words, program=[sys.executable], environment={"GPUSCHED_MAX_CHECKS": "3"}).wait()
    assert ended.code == 0, ended.text
    assert pair.landed() == [([pair.machine.uuid(1)],) * 2]
    assert clean(pair.machine)


@pytest.mark.parametrize(
    "keys", [(), ("err.nvmlDeviceGetProcessUtilization=NOT_SUPPORTED",), ("pids=hidden", "util=95")]
)
def test_a_colleague_who_works_in_little_memory_keeps_his_gpu(pair: Rigged, keys: tuple[str, ...]) -> None:
    """By the use of his process, or by that of the device where that is not told."""
    pair.machine.start("hold", 0, 490, "--hold", 300, "--util", 95)
    if keys:
        pair.machine.set(0, *keys)
    ended = pair.run(*[pair.job(1000 + n) for n in range(3)], options="--max-gpus 2")
    assert ended.code == 0, ended.text
    assert [devices for devices, _ in pair.landed()] == [[pair.machine.uuid(1)]] * 3
    assert clean(pair.machine)


def test_a_colleague_who_idles_in_little_memory_does_not_keep_it(pair: Rigged) -> None:
    for gpu in (0, 1):
        pair.machine.start("hold", gpu, 490, "--hold", 300, "--util", 0)
    assert pair.run(pair.job(1000)).code == 0


def test_a_job_knows_if_it_was_alone(pair: Rigged) -> None:
    """Also where processes of ours come and go: a driver lists them as it lists those of others."""
    churn = "for i in 1 2 3 4 5 6; do " + pair.job(600, "--hold 0.1") + "; done"
    running = pair.start("run", pair.write(f"[alone=yes] {churn}", f"[alone=yes] {pair.job(900, '--hold 2')}"))
    wait_for(lambda: pair.running() == 2)
    pair.machine.start("hold", 1, 300, "--hold", 300, "--util", 0)
    assert running.wait().code == 0
    alone, disturbed = [job["foreign_use"] for job in pair.metrics()["jobs"]]
    assert (alone["share"], alone["disturbed"]) == (0.0, False)
    assert disturbed["disturbed"] and (disturbed["peak_bytes"], disturbed["peak_utilisation"]) == (300 << 20, 0.0)
    pair.machine.set("all", "pids=hidden", "foreign=300")
    waiting = pair.start("run", pair.write(f"[alone=yes] {pair.job(901)}"))
    waiting.wait_until_said("its processes cannot be listed, which alone=yes needs")


def test_a_colleague_who_comes_while_our_job_runs_is_respected_after_it(pair: Rigged) -> None:
    lines = [pair.job(1000, "--hold 1"), pair.job(1001, "--hold 1"), pair.job(1002), pair.job(1003)]
    running = pair.start("run", pair.write(*lines))
    wait_for(lambda: pair.machine.audit()["jobs"] >= 2)
    colleague = pair.machine.start("hold", 0, 3000, "--hold", 300)
    assert running.wait().code == 0
    assert [devices for devices, _ in pair.landed()[2:]] == [[pair.machine.uuid(1)]] * 2
    assert all(clash["pid"] == colleague.pid for clash in pair.machine.audit()["clashes"])  # he came to us


def test_mixed_cards_whose_cuda_order_differs_and_one_is_lost(rig: Rig, tmp_path: Path) -> None:
    with (
        make(rig, tmp_path, gpus=4, model="T4,RTX3090,T4,H100", cuda_order="3,1,0,2") as machine,
        Rigged(tmp_path / "box", machine) as box,
    ):
        lines = [box.job(1000 + n, "--hold 1.2" if n < 4 else "--hold 0.2") for n in range(16)]
        running = box.start("run", box.write(*lines))
        wait_for(lambda: machine.audit()["jobs"] == 4)
        machine.set("system", "cuda_lost=shift")
        machine.run("lose", 1)
        wait_for(lambda: sum(state == "succeeded" for state in box.states()) >= 8)
        machine.set(1, "present=0")  # the count drops, later indexes move down
        ended = running.wait()
        assert ended.code == 0, ended.text
        assert all(devices == where for devices, where in box.landed()), box.landed()
        assert {devices[0] for devices, _ in box.landed()[4:]} <= {machine.uuid(n) for n in (0, 2, 3)}
        assert [a.outcome.cause for a in box.jobs()[1].attempts if a.outcome] == ["gpu_lost", ""]
        assert ended.out.count("is set aside") == 1
        assert "UUIDs in CUDA_VISIBLE_DEVICES" in ended.out
        assert clean(machine)


@pytest.fixture
def four(rig: Rig, tmp_path: Path) -> Iterator[Rigged]:
    """A box with four H100, on which CUDA does not count those that are lost."""
    with make(rig, tmp_path, gpus=4) as machine, Rigged(tmp_path / "box", machine) as box:
        machine.set("system", "cuda_lost=shift")
        yield box


def test_a_card_that_is_lost_between_two_polls_moves_no_job(four: Rigged) -> None:
    """The one that is lost is not even one of ours."""
    lines = [four.job(1000, "--hold 1"), four.job(1001), four.job(1002)]
    running = four.start("run", four.write(*lines), "--gpu-list", "2", GPUSCHED_POLL_INTERVAL="30")
    wait_for(lambda: four.machine.audit()["jobs"])
    four.machine.run("lose", 0)
    ended = running.wait()
    assert ended.code == 0, ended.text
    assert four.landed() == [([four.machine.uuid(2)],) * 2] * 3
    assert "UUIDs in CUDA_VISIBLE_DEVICES" in ended.out


LOST_LATE = COMING.replace("colleagues[0].stdout.readline()", "colleagues[0].wait()").replace('"claim"', '"hand over"')


def test_a_job_that_starts_on_the_wrong_card_is_stopped_and_started_on_its_own(four: Rigged) -> None:
    """The card is lost after the last look, before CUDA counts."""
    four.write(four.job(1000, "--hold 3"))
    fakegpu = [sys.executable, f"{four.machine.tools}/fakegpu", "lose", str(four.machine.directory), "0"]
    more = {"GPUSCHED_GPU_LIST": "1-2"}
    ended = four.spawn("-c", LOST_LATE, *fakegpu, program=[sys.executable], environment=more).wait()
    assert ended.code == 0, ended.text
    (row,) = four.jobs()
    assert [(a.outcome.kind.value, a.outcome.cause) for a in row.attempts if a.outcome] == [
        ("interrupted", "misplaced"),
        ("exited", ""),
    ]
    assert (row.job.tries, row.job.losses) == (1, 0)
    ((given, where),) = four.landed()
    assert given == where


def test_a_job_on_a_card_that_is_lost_is_tried_elsewhere(pair: Rigged) -> None:
    running = pair.start("run", pair.write(pair.job(1000, "--hold 1.5"), "true"), "--max-gpus", "1")
    wait_for(lambda: pair.machine.audit()["jobs"])
    pair.machine.run("lose", 0)
    ended = running.wait()
    assert ended.code == 0, ended.text
    first = pair.jobs()[0]
    assert [a.outcome.cause for a in first.attempts if a.outcome] == ["gpu_lost", ""]
    assert first.job.tries == 1
    assert pair.landed()[0] == ([pair.machine.uuid(1)],) * 2


def test_a_lost_card_that_comes_back_is_used_again(pair: Rigged) -> None:
    pair.machine.run("lose", 0)
    pair.machine.run("lose", 1)
    running = pair.start("run", pair.write(pair.job(1000)))
    running.wait_until_said("is set aside")
    pair.machine.run("recover", 1)
    ended = running.wait()
    assert ended.code == 0
    assert ended.out.count("is set aside") == 2, ended.out
    assert pair.landed() == [([pair.machine.uuid(1)],) * 2]


@contextlib.contextmanager
def users_of(rig: Rig, gpus: int, *uids: int) -> Iterator[tuple[list[Rigged], Callable[..., Running]]]:
    """Boxes of users who share a machine, and what starts `gpusched` as the user of one of them."""
    found = interpreter_for_all()
    if found is None:
        pytest.skip("no Python here that other users can start with our packages")
    python, path = found
    with shared_directory() as root:
        shutil.copytree(rig.tools, root / "rig")
        (root / "rig").chmod(0o755)
        tools = Rig(root / "rig", rig.fakegpu)
        with tools.machine(root / "machine", gpus=gpus, release_ms=100) as machine, contextlib.ExitStack() as stack:
            (machine.directory / "events.log").touch()
            (machine.directory / "events.log").chmod(0o666)
            more = {"PYTHONPATH": path, "GPUSCHED_CLAIMS_DIR": str(root / "claims"), "TMPDIR": "/tmp"}
            boxes = [stack.enter_context(Rigged(root / str(uid), machine, **more)) for uid in uids]
            for uid, box in zip(uids, boxes, strict=True):
                box.alloc = f"{python} -S {tools.tools}/fakegpu alloc"
                for directory, _, _ in os.walk(box.root):
                    os.chown(directory, uid, uid)

            def start(box: Rigged, *words: str, **environment: str) -> Running:
                uid = box.root.stat().st_uid
                return box.spawn(*words, program=[python, "-m", "gpusched"], user=uid, environment=environment)

            yield boxes, start


NEEDS_USERS = pytest.mark.skipif(os.getuid() != 0, reason="needs root to be several users")


@NEEDS_USERS
def test_three_dispatchers_of_three_users_in_the_same_second(rig: Rig) -> None:
    with users_of(rig, 2, 64001, 64002, 64003) as (boxes, start):
        for box in boxes:
            box.write(*[box.job(n, "--hold 0.15") for n in range(1000, 1004)])
        running = [start(box, "run", "list.txt") for box in boxes]
        for process in running:
            assert process.wait().code == 0, process.said()
        for box in boxes:
            assert box.states() == ["succeeded"] * 4
            assert (box.queue() / "queue.db").stat().st_uid == box.root.stat().st_uid
        audit = boxes[0].machine.audit()
        assert (audit["clashes"], audit["jobs"]) == ([], 12)
        assert clean(boxes[0].machine)
        assert boxes[0].claimed() == set()
        owners = {path.stat().st_uid for path in boxes[0].claims.iterdir()}
        assert owners <= {64001, 64002, 64003}


@NEEDS_USERS
def test_the_single_job_of_a_newcomer_starts_after_the_next_end_and_its_checks(rig: Rig) -> None:
    """And jobs for four GPUs gather them meanwhile, on a machine whose memory comes back late."""
    with users_of(rig, 4, 64001, 64002, 64003) as (boxes, start):
        ada, bo, cy = boxes
        many = start(ada, "run", ada.write(*[ada.job(1000 + n, f"--hold 0.{5 + n % 4}") for n in range(60)]))
        many.wait_until_said("job 4 on GPU")
        four = start(cy, "run", cy.write(f"[gpus=4] {cy.job(3000)}", f"[gpus=4] {cy.job(3001)}"))
        one = start(bo, "run", bo.write(bo.job(2000)), GPUSCHED_MAX_CHECKS="5", GPUSCHED_POLL_INTERVAL="0.1")
        assert one.wait(20).code == 0 and four.wait(30).code == 0, one.said() + four.said()
        assert "job 60" not in many.said(), "they came after all others"
        many.signal(signal.SIGTERM)
        many.wait()
        assert clean(ada.machine)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be another user")
def test_a_user_without_a_home_or_a_name(rig: Rig, tmp_path: Path) -> None:
    """As in a container that was started with a number for a user."""
    found = interpreter_for_all()
    if found is None:
        pytest.skip("no Python here that other users can start with our packages")
    python, path = found
    root = Path(tempfile.mkdtemp(prefix="gpusched-users-"))
    try:
        root.chmod(0o777)
        with Box(root, environment={"PYTHONPATH": path}) as box:
            box.write("id -u", "false")
            for directory, folders, files in os.walk(root):
                for name in (".", *folders, *files):
                    os.chown(os.path.join(directory, name), 64001, 64001)
            for words in (("run", "list.txt"), ("status", "-q", "gpusched-runs/list"), ("config",)):
                program = [python, "-m", "gpusched"]
                ended = box.spawn(*words, program=program, user=64001, environment={"HOME": None}).wait()
                assert "Traceback" not in ended.text, ended.text
                assert ended.code == (1 if words[0] == "run" else 0), ended.text
            assert box.jobs()[0].said() == "64001\n"
            assert not (box.work / "~").exists()
    finally:
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("keys", ["release_ms=300", "release_ms=300 ghost=1"])
def test_memory_that_the_driver_gives_back_late(pair: Rigged, keys: str) -> None:
    pair.machine.set("system", *keys.split())
    ended = pair.run(*[pair.job(2000 + n, "--hold 0.05") for n in range(6)])
    assert ended.code == 0, ended.text
    assert clean(pair.machine)


def test_memory_that_leaks_for_a_while(pair: Rigged) -> None:
    ended = pair.run(*[pair.job(2000 + n, "--hold 0.05 --leak 0.8") for n in range(4)])
    assert ended.code == 0, ended.text
    assert clean(pair.machine)


def test_workers_that_outlive_their_parent(pair: Rigged) -> None:
    """The parent is killed, its children keep the memory: the GPU is theirs until they have ended."""
    line = f"{pair.alloc} 3000 --hold 0.8 --workers 2 & sleep 0.4; kill -9 $!"
    ended = pair.run(line, pair.job(1000), options="--force --max-gpus 1")
    assert pair.states()[1] == "succeeded", ended.text
    assert clean(pair.machine)


@pytest.mark.parametrize("keys", ["pids=hidden", "pids=shift:100000", "procmem=na"])
def test_processes_that_cannot_be_told_apart(pair: Rigged, keys: str) -> None:
    """In a container, or on WSL: nothing that is not known is taken for zero, and yet the jobs run."""
    pair.machine.set("system", keys, "release_ms=100")
    pair.machine.occupy(1, 4000, foreign=1)
    ended = pair.run(*[pair.job(2000 + n, "--hold 0.2") for n in range(4)], options="--max-checks 2")
    assert ended.code == 0, ended.text
    assert {devices[0] for devices, _ in pair.landed()} == {pair.machine.uuid(0)}
    assert clean(pair.machine)


def test_a_colleague_behind_hidden_pids(pair: Rigged) -> None:
    """Somebody comes while our job runs where nobody can see who it is: the GPU is not taken again over him."""
    pair.machine.set("system", "pids=hidden")
    running = pair.start("run", pair.write(pair.job(2000, "--hold 0.8"), pair.job(2001)), "--gpu-list", "0")
    wait_for(lambda: pair.machine.audit()["jobs"])
    pair.machine.occupy(0, 3000, foreign=1)
    wait_for(lambda: pair.states() == ["succeeded", "queued"])
    time.sleep(0.5)
    assert pair.states() == ["succeeded", "queued"]
    for path in (pair.machine.directory / "gpu0" / "p").glob(f"{os.getpid()}-*"):
        path.unlink()
    assert running.wait().code == 0


def test_compute_modes(rig: Rig, tmp_path: Path) -> None:
    with make(rig, tmp_path, gpus=3) as machine, Rigged(tmp_path / "box", machine) as box:
        machine.set(0, "compute_mode=2")
        machine.set(1, "compute_mode=3")
        machine.occupy(1, 10, foreign=1)  # little memory, but alone by mode
        ended = box.run(*[box.job(1000 + n) for n in range(3)])
        assert ended.code == 0, ended.text
        assert {devices[0] for devices, _ in box.landed()} == {machine.uuid(2)}
        ended = box.gpusched("run", box.write("true", name="b.txt"), "--gpu-list", "0")
        assert ended.code == 3
        assert "PROHIBITED" in ended.err


def test_mig(rig: Rig, tmp_path: Path) -> None:
    with (
        make(rig, tmp_path, gpus=2, model="H100,T4", mig="0:1g.10gb,3g.40gb") as machine,
        Rigged(tmp_path / "box", machine) as box,
    ):
        ended = box.run(*[box.job(1000 + n, "--hold 0.3") for n in range(6)])
        assert ended.code == 0, ended.text
        assert all(devices == where for devices, where in box.landed()), box.landed()
        given = [devices[0] for devices, _ in box.landed()]
        assert machine.uuid(0) not in given
        assert len({uuid for uuid in given if uuid.startswith("MIG-")}) == 2
        assert "was not given" not in ended.text  # the board lists the processes of its instances, too
        assert machine.uuid(1) in given
        assert clean(machine)
        ended = box.gpusched("run", box.write("true", name="b.txt"), "--gpu-list", "0", "--gpus-per-job", "2")
        assert ended.code == 2
        assert "MIG" in ended.err


@pytest.mark.parametrize("generation", ["r535", "r470"])
def test_older_drivers(rig: Rig, tmp_path: Path, generation: str) -> None:
    with make(rig, tmp_path, gpus=2) as machine, Rigged(tmp_path / "box", machine, generation) as box:
        machine.occupy(0, 4000, foreign=1)
        ended = box.run(*[box.job(1000 + n) for n in range(3)], options="--gpu-mem-threshold 1500")
        assert ended.code == 0, ended.text
        assert {devices[0] for devices, _ in box.landed()} == {machine.uuid(1)}


@pytest.mark.parametrize(
    ("keys", "words"),
    [("init=nodriver", "not loaded"), ("init=mismatch", "reboot"), ("init=noperm", "video")],
)
def test_a_driver_that_does_not_work_is_exit_3(pair: Rigged, keys: str, words: str) -> None:
    pair.machine.set("system", keys)
    ended = pair.run("true")
    assert ended.code == 3
    assert words in ended.err
    assert "Traceback" not in ended.err
    assert not pair.queue().exists()


def _hangs(box: Rigged) -> Running:
    """A run with two jobs on the GPUs and one that waits, and a driver that no longer answers."""
    lines = ["echo ready; sleep 2.5", "echo ready; sleep 3600", "echo third"]
    running = box.spawn("run", box.write(*lines), "--time-limit", "4", program=IMPATIENT)
    wait_for(lambda: [row.said() for row in box.jobs()[:2]] == ["ready\n"] * 2)
    box.machine.set("all", "slow.nvmlDeviceGetMemoryInfo=600000")
    return running


def test_a_driver_that_hangs_and_comes_back(pair: Rigged) -> None:
    running = _hangs(pair)
    running.wait_until_said("nothing new starts on a GPU")
    wait_for(lambda: pair.states()[0] == "succeeded", "the end of the first job")  # running jobs go on
    wait_for(lambda: pair.states()[1] == "failed", "the time limit")  # time limits too
    assert pair.states()[2] == "queued"
    status = pair.gpusched("status", "-q", "list")
    assert status.code == 0, status.text
    pair.machine.set("all", "slow.nvmlDeviceGetMemoryInfo=")
    ended = running.wait()
    assert ended.code == 1
    assert [row.outcome for row in pair.jobs()] == ["exited 0", "timed_out", "exited 0"]
    assert ended.out.count("nothing new starts on a GPU") == 1
    assert "can be read again" in ended.out


def test_an_outage_that_begins_between_two_polls(pair: Rigged) -> None:
    running = pair.start(
        "run", pair.write("echo ready; sleep 5", "true"), "--max-gpus", "1", GPUSCHED_POLL_INTERVAL="1"
    )
    wait_for(lambda: pair.jobs() and pair.jobs()[0].said() == "ready\n")
    pair.machine.set("system", "init=nodriver")
    for pid in pair.processes():
        if "gpusched.host.gpus.nvml" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
    running.wait_until_said("nothing new starts on a GPU")
    wait_for(lambda: "ended unexpectedly" in pair.gpusched("explain", "2", "-q", "list").out)
    assert "ended unexpectedly" in pair.gpusched("status", "-q", "list").out
    running.signal(signal.SIGINT)
    assert running.wait().code == 130


def test_a_job_that_ends_after_a_failure_of_the_driver_leaves_its_gpu(pair: Rigged) -> None:
    lines = [f"echo ready; {UNTIL_GO}", "echo ready; sleep 60"]
    running = pair.start("run", pair.write(*lines), GPUSCHED_POLL_INTERVAL="2")
    wait_for(lambda: [row.said() for row in pair.jobs()[:2]] == ["ready\n"] * 2)
    wait_for(lambda: all(job in pair.gpusched("status", "-q", "list").out for job in ("  job 1", "  job 2")))
    pair.machine.set("system", "init=nodriver")
    for pid in pair.processes():
        if "gpusched.host.gpus.nvml" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)
    running.wait_until_said("nothing new starts on a GPU")
    (pair.work / "go").touch()
    wait_for(lambda: pair.states() == ["succeeded", "running"])
    shown = pair.gpusched("status", "-q", "list").out
    assert "  job 1" not in shown and "  job 2" in shown and "1 running" in shown
    running.signal(signal.SIGINT)
    running.wait_until_said("Ctrl-C")
    running.signal(signal.SIGINT)
    assert running.wait().code == 130


def test_ctrl_c_while_the_driver_hangs(pair: Rigged) -> None:
    running = _hangs(pair)
    running.wait_until_said("nothing new starts on a GPU")
    running.signal(signal.SIGINT)
    running.wait_until_said("Ctrl-C")
    running.signal(signal.SIGINT)
    began = time.monotonic()
    assert running.wait().code == 130
    assert time.monotonic() - began < 15
    assert [row.outcome for row in pair.jobs()] == ["interrupted", "interrupted", ""]


def test_a_driver_that_is_upgraded_under_us(pair: Rigged) -> None:
    running = pair.spawn(
        "run", pair.write(f"echo ready; {UNTIL_GO}", "true", "true #3"), "--max-gpus", "1", program=IMPATIENT
    )
    wait_for(lambda: pair.jobs() and pair.jobs()[0].said() == "ready\n")
    pair.machine.set("system", "init=mismatch", "err.nvmlDevice=LIB_RM_VERSION_MISMATCH")
    running.wait_until_said("nothing new starts on a GPU")
    assert "differ in version" in running.said()
    (pair.work / "go").touch()
    wait_for(lambda: pair.states()[0] == "succeeded")
    assert pair.states()[1:] == ["queued", "queued"]
    pair.machine.set("system", "init=ok", "err.nvmlDevice=")
    ended = running.wait()
    assert ended.code == 0, ended.text
    assert ended.out.count("nothing new starts on a GPU") == 1


def test_one_device_that_fails_by_itself_is_set_aside_alone(pair: Rigged) -> None:
    running = pair.start("run", pair.write(*[f"{UNTIL_GO}; sleep 0.4 #{n}" for n in range(6)]))
    wait_for(lambda: pair.running() == 2)
    pair.machine.set(0, "err.nvmlDeviceGetMemoryInfo=UNKNOWN")
    running.wait_until_said("set aside")
    (pair.work / "go").touch()
    ended = running.wait()
    assert ended.code == 0
    assert ended.out.count("set aside") == 1
    assert {devices[0] for devices, _ in pair.landed()[2:]} == {pair.machine.uuid(1)}


def test_new_memory_errors_put_a_card_into_quarantine(pair: Rigged) -> None:
    pair.machine.set(1, "ecc_uncorr=7")  # old ones mean nothing
    running = pair.start("run", pair.write(*[f"sleep 1.5 #{n}" for n in range(6)]))
    wait_for(lambda: {row.indices[0] for row in pair.jobs() if row.attempts} == {0, 1})
    pair.machine.set(0, "ecc_uncorr=1")
    ended = running.wait()
    assert ended.code == 0, ended.text
    assert "is in quarantine: it has new uncorrectable memory errors" in ended.out
    assert {devices[0] for devices, _ in pair.landed()[4:]} == {pair.machine.uuid(1)}


def test_the_published_devices_and_metrics(pair: Rigged) -> None:
    pair.machine.occupy(1, 7000, foreign=1)
    running = pair.start("run", pair.write(pair.job(3000, "--hold 1.5 --util 80")))
    wait_for(lambda: pair.running() == 1 and pair.machine.audit()["jobs"])
    time.sleep(0.3)
    ended = pair.gpusched("devices", "--json")
    assert ended.code == 0, ended.text
    found = json.loads(ended.out)
    assert "7000" in ended.out or str(7000 << 20) in ended.out
    assert len(found["devices"]) == 2
    assert running.wait().code == 0
    (job,) = pair.metrics()["jobs"]
    assert job["peak_memory_bytes"] == 3000 << 20
    assert job["energy_j"] and job["energy_j"] > 0
