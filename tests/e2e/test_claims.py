"""Claims among users who cannot be trusted, by real dispatchers: bad labels, bad files, locks that are taken away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.host.gpus.claims import Claims
from tests.support.box import GPUSCHED, Box, wait_for
from tests.support.other_user import NEEDS_TWO_USERS, OTHER_UID, other_user, shared_directory


@pytest.fixture
def shared() -> Iterator[Path]:
    with shared_directory() as path:
        yield path


@pytest.fixture
def box(tmp_path: Path, shared: Path) -> Iterator[Box]:
    """A box of two GPUs whose claims directory every user can write to."""
    with Box(tmp_path, gpus="2", environment={"GPUSCHED_CLAIMS_DIR": str(shared)}) as made:
        yield made


@NEEDS_TWO_USERS
@pytest.mark.parametrize("label", ["[" * 4096, '{"pid": 1e999, "queue": "", "since": 1e999}'], ids=["deep", "large"])
def test_a_label_of_another_user_ends_nobody(box: Box, shared: Path, label: str) -> None:
    code = """
held = lock(sys.argv[1] + ".lock")
with open(f"{sys.argv[1]}.lock.by-{os.getuid()}", "w") as file:
    file.write(sys.argv[2])
"""
    with other_user(code, shared / box.uuid(0), label) as pid:
        ended = box.run("true", "true #2")
        assert ended.code == 0 and "Traceback" not in ended.text, ended.text
        assert [row.indices for row in box.jobs()] == [[1], [1]]
        shown = json.loads(box.gpusched("devices", "--json").out)["devices"]
        assert shown[0]["claim"] == {"user": str(OTHER_UID), "pid": pid, "queue": "", "since": None}
        assert f"by {OTHER_UID}'s gpusched" in box.gpusched("run", "--dry-run", "list.txt").text


@pytest.mark.parametrize("kind", ["directory", "pipe", "link"])
def test_a_bad_lock_file_costs_one_device_and_says_whose_it_is(box: Box, shared: Path, kind: str) -> None:
    path = shared / f"{box.uuid(0)}.lock"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    what = f"its lock file {path} is a {kind}: ask "
    assert what in box.gpusched("devices", "--json").out
    assert what in box.gpusched("run", "--dry-run", box.write("true")).text.replace("\n", " ").replace("  ", " ")
    running = box.start("run", box.write("sleep 1", "sleep 1 #2", "[gpus=2] true"))
    running.wait_until_said(f"nothing starts on GPU 0 ({box.uuid(0)}, ")
    running.wait_until_said("job 2 succeeded")
    assert [row.indices for row in box.jobs()[:2]] == [[1], [1]]
    assert what in box.gpusched("explain", "3").out
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 143 and ended.text.count("nothing starts on GPU 0") == 1, ended.text


def test_a_lock_file_that_is_mended_is_tried_again(box: Box, shared: Path) -> None:
    path = shared / f"{box.uuid(0)}.lock"
    path.mkdir()
    code = (
        "from gpusched.dispatcher import device_book\ndevice_book.UNUSABLE_AGAIN_S = 0.3\n"
        "from gpusched.cli.main import main\nmain()"
    )
    running = box.spawn("run", box.write("[gpus=2] true"), program=[GPUSCHED[0], "-c", code])
    running.wait_until_said("nothing starts on GPU 0")
    path.rmdir()
    ended = running.wait()
    assert ended.code == 0 and box.jobs()[0].indices == [0, 1]


@NEEDS_TWO_USERS
def test_a_pipe_under_any_name_hangs_nobody(box: Box, shared: Path) -> None:
    """Its lock file, its label, and all names that were used for files on their way."""
    code = """
for name in ("", ".by-0", ".tmp", *(f".tmp{pid}" for pid in range(1, 200))):
    os.mkfifo(sys.argv[1] + name)
    os.mkfifo(sys.argv[1] + ".by-0" + name + "x")
"""
    with other_user(code, shared / f"{box.uuid(0)}.lock"):
        running = box.start("run", box.write("true", "[gpus=2] true"))
        running.wait_until_said(f"is a pipe: ask {OTHER_UID}, or root, to remove it")
        running.wait_until_said("job 1 succeeded")
        running.signal(signal.SIGTERM)
        assert running.wait(20).code == 143


def test_a_dispatcher_without_descriptors_blames_itself(box: Box) -> None:
    """RLIMIT_NOFILE is met while claims are taken: trouble of the box, said once; the devices are not set aside."""
    code = (
        "import os\n"
        "from gpusched.dispatcher import trouble\ntrouble.TROUBLE_AGAIN_S = 0.3\n"
        "from gpusched.host import locks\n"
        "take = locks.take_file\n"
        "def fail(path, mode=0o644):\n"
        "    if 'GPU-' in path and not os.path.exists('go'):\n"
        "        raise OSError(24, 'Too many open files', path)\n"
        "    return take(path, mode)\n"
        "locks.take_file = fail\n"
        "from gpusched.cli.main import main\nmain()"
    )
    running = box.spawn("run", box.write("true"), program=[GPUSCHED[0], "-c", code])
    running.wait_until_said("no job can be started: nothing new starts")
    (box.work / "go").touch()
    ended = running.wait()
    assert ended.code == 0 and "nothing starts on GPU" not in ended.text
    assert ended.text.count("Too many open files") == 1


def test_a_claim_whose_lock_file_is_removed_keeps_others_away(tmp_path: Path) -> None:
    """Also when the dispatcher is killed afterwards: the shepherd has the new lock too, and only while its job runs."""
    with Box(tmp_path, gpus="1") as box:
        first = box.start("run", box.write("touch begun; sleep 3; touch ended"))
        wait_for(lambda: (box.work / "begun").exists())
        (box.claims / f"{box.uuid(0)}.lock").unlink()
        first.wait_until_said(f"the lock file of the claim of {box.uuid(0)} was gone: locked anew")
        second = box.start("run", box.write("test -e ended", name="other.txt"))
        first.signal(signal.SIGKILL)
        first.wait()
        assert second.wait().code == 0, second.said()
        assert not (box.work / "ended").stat().st_mtime > box.jobs("other")[0].last.started_at
        assert box.claimed() == set()


def test_an_idle_shepherd_holds_no_claim_that_came_later(tmp_path: Path) -> None:
    with Box(tmp_path, gpus="1") as box:
        lines = ("touch begun; sleep 1", "[gpus=0] while [ ! -e go ]; do sleep 0.1; done")
        running = box.start("run", box.write(*lines))
        wait_for(lambda: (box.work / "begun").exists())
        (box.claims / f"{box.uuid(0)}.lock").unlink()
        running.wait_until_said("locked anew")
        assert box.claimed() == {box.uuid(0)}
        running.wait_until_said("job 1 succeeded")
        wait_for(lambda: not box.claimed())
        (box.work / "go").touch()
        assert running.wait().code == 0


def test_nothing_starts_beside_somebody_who_took_the_place_of_a_claim(tmp_path: Path) -> None:
    """Budgets would let the second job join the first; the device is reported and left alone."""
    with Box(tmp_path, gpus="1", environment={"GPUSCHED_POLL_INTERVAL": "0.3"}) as box:
        box.write("[mem=1G] touch begun; sleep 2", "[mem=1G after=wait] touch joined", "[name=wait gpus=0] cat go")
        os.mkfifo(box.work / "go")
        running = box.start("run", "list.txt")
        wait_for(lambda: (box.work / "begun").exists())
        path = box.claims / f"{box.uuid(0)}.lock"
        path.unlink()
        thief = Claims(str(box.claims)).try_acquire(box.uuid(0), "thief", 1.0)
        assert thief is not None
        running.wait_until_said(f"{path} was removed, and somebody else has locked the new one")
        (box.work / "go").write_text("")
        wait_for(lambda: box.states()[0] == "succeeded")
        assert box.states()[1] == "queued" and " claimed " in box.gpusched("devices").out
        thief.close()
        assert running.wait().code == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, for a pid namespace")
def test_stop_from_another_pid_namespace_reaches_the_dispatcher(box: Box) -> None:
    elsewhere = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*elsewhere, "true"], capture_output=True).returncode:
        pytest.skip("no pid namespace can be made here")
    running = box.start("run", box.write("sleep 60"))
    wait_for(lambda: box.running() == 1)
    running.signal(signal.SIGSTOP)
    ended = box.spawn("stop", program=[*elsewhere, *GPUSCHED]).wait()
    assert ended.code == 3 and "cannot be seen from here" in ended.err, ended.text
    running.signal(signal.SIGCONT)
    ended = box.spawn("stop", "--now", program=[*elsewhere, *GPUSCHED]).wait()
    assert ended.code == 0 and "stops 1 running job" in ended.out, ended.text
    assert running.wait().code in (130, 143)
    ended = box.spawn("stop", program=[*elsewhere, *GPUSCHED]).wait()
    assert ended.code == 0 and "there is nothing to stop" in ended.out


@NEEDS_TWO_USERS
def test_whose_the_claims_directory_is_is_told_by_devices_and_check(box: Box, shared: Path) -> None:
    os.chown(shared, OTHER_UID, OTHER_UID)
    box.write("true")
    for words in (("devices",), ("devices", "--json"), ("check", "list.txt")):
        ended = box.gpusched(*words)
        assert ended.code == 0 and f"as root: chown root:root {shared}" in ended.err, ended.text
    os.chown(shared, 0, 0)
    assert box.gpusched("check", "list.txt").err == ""
