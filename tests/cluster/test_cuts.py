"""Nodes that are cut off, come late, or have no room on their disk: real processes, joined by Ray.

A cut is a cable that is pulled (network namespaces), or a stop of all that a node has of Ray and of the cluster. Its
dispatcher, its shepherds and its jobs go on in both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support import network
from tests.support.box import wait_for
from tests.support.disk import fill, small_disk
from tests.support.lab import Lab
from tests.support.paths import TESTS

pytestmark = pytest.mark.soak
pytest.importorskip("ray")

COMPILER = shutil.which("cc") or shutil.which("gcc")
LEASE_S, MARGIN_S = 12.0, 1.0
CABLE = pytest.param("cable", marks=pytest.mark.skipif(not network.can_be_made(), reason="needs root"))


@contextlib.contextmanager
def lab_of(root: Path, *nodes: str, way: str = "freeze", gpus: str = "1") -> Iterator[Lab]:
    with (
        network.Network(nodes) if way == "cable" else nullcontext() as net,
        Lab(root, *nodes, gpus=gpus, lease=f"{LEASE_S:g}", network=net) as lab,
    ):
        lab.start()
        yield lab


@pytest.mark.parametrize("way", [CABLE, "freeze"])
def test_a_cut_that_is_shorter_than_the_lease_changes_nothing(way: str, tmp_path: Path) -> None:
    with lab_of(tmp_path, "a", "b", way=way, gpus="2") as lab:
        ids = lab.submit(lab.job("long", 20), lab.job("short", 3, 3), options="--node a")
        wait_for(lambda: "1 begin" in lab.lines_of("long"), "the beginning")
        lab.cut_off("a", way)
        time.sleep(5)
        lab.join_again("a", way)
        rows = lab.wait(ids)
        assert [row.outcome for row in rows] == ["exited 0", "exited 3"]
        assert [len(row.attempts) for row in rows] == [1, 1]
        assert list(lab.lines_of("long")) == ["1 begin", "1 end"]


@pytest.mark.parametrize("leases", [1, 3])
@pytest.mark.parametrize("way", [CABLE, "freeze"])
def test_a_fenced_job_has_ended_before_its_second_attempt_begins(way: str, leases: int, tmp_path: Path) -> None:
    with lab_of(tmp_path, "a", "b", way=way, gpus="2") as lab:
        ids = lab.submit(lab.job("long", 25), lab.job("short", 4))
        wait_for(lambda: lab.count("begin") == 2, "the beginnings")
        (node,) = {lab.node_of(job_id) for job_id in ids[:1]}
        other = "b" if node == "a" else "a"
        cut_at = time.time()
        lab.cut_off(node, way)
        wait_for(lambda: "2 begin" in lab.lines_of("long"), "the second attempt", 3 * LEASE_S)
        said = lab.lines_of("long")
        assert said["1 term"].at <= cut_at + LEASE_S
        assert said["1 term"].at + MARGIN_S <= said["2 begin"].at
        assert lab.node_of(ids[0]) == other
        time.sleep(max(0.0, cut_at + leases * LEASE_S + 2 - time.time()))
        lab.join_again(node, way)
        refused = f"stale report of node {node} refused: job {ids[0]}, attempt 1 is ended there"
        wait_for(lambda: refused in lab.log("head", "head.log"), "the refusal", 120)
        rows = lab.wait(ids)
        assert [row.outcome for row in rows] == ["exited 0", "exited 0"]
        assert [each.outcome and each.outcome.kind.value for each in rows[0].attempts] == ["lost", "exited"]
        assert not lab.count("overlap")
        later = lab.submit(lab.job("later", 0.1), options=f"--node {node}")
        assert lab.wait(later)[0].outcome == "exited 0"


@pytest.mark.parametrize("way", [CABLE, "freeze"])
def test_a_node_that_comes_back_late_brings_its_results(way: str, tmp_path: Path) -> None:
    """Before its lease has run out they count; a result that comes later is refused, and the job runs again."""
    with lab_of(tmp_path, "a", "b", way=way) as lab:
        ids = lab.submit(lab.job("one", 3, 5), options="--node a")
        wait_for(lambda: lab.count("begin") == 1, "the beginning")
        lab.cut_off("a", way)
        wait_for(lambda: lab.count("end") == 1, "the end on the node")
        lab.join_again("a", way)
        (row,) = lab.wait(ids)
        assert (row.outcome, len(row.attempts)) == ("exited 5", 1)

        ids = lab.submit(lab.job("two", 3, 5), options="--node a")
        wait_for(lambda: lab.count("begin") == 2, "the beginning")
        lab.cut_off("a", way)
        wait_for(lambda: lab.count("end") == 2, "the end on the node")
        wait_for(lambda: lab.rows(ids)[0].state == "queued", "the end of the lease")
        lab.join_again("a", way)
        (row,) = lab.wait(ids, 120)
        assert [each.outcome and each.outcome.kind.value for each in row.attempts] == ["lost", "exited"]
        assert f"stale report of node a refused: job {ids[0]}, attempt 1" in lab.log("head", "head.log")


def test_a_node_that_boots_before_its_head_is_in_once_that_is_there(tmp_path: Path) -> None:
    with lab_of(tmp_path, "a") as lab:
        ids = lab.submit(lab.job("j", 60))
        wait_for(lambda: lab.count("begin") == 1, "the beginning")
        for box in (lab.head, lab.nodes["a"]):
            wait_for(lambda box=box: not lab.kill(box, ""), "the end of all", 20)  # type: ignore[misc]
        joining = lab.begin_join("a")
        time.sleep(5)
        assert joining.process.poll() is None
        assert lab.up().code == 0
        assert joining.wait(120).code == 0
        wait_for(lambda: lab.count("begin") == 2, "the second attempt", 120)
        assert lab.rows(ids)[0].attempts[0].outcome is not None


def test_leases_run_out_while_no_node_speaks(tmp_path: Path) -> None:
    with lab_of(tmp_path, "a") as lab:
        (job_id,) = lab.submit(lab.job("long", 60))
        wait_for(lambda: lab.count("begin") == 1, "the beginning")
        lab.power_cut("a")
        cut_at = time.time()
        wait_for(lambda: lab.rows([job_id])[0].state == "queued", "the end of the lease", 2 * LEASE_S)
        assert time.time() >= cut_at + LEASE_S - 2
        assert "not heard of for" in lab.head.gpusched("explain", "-q", "lab", str(job_id)).out


def test_a_late_joiner_gets_what_waits(tmp_path: Path) -> None:
    with lab_of(tmp_path, "a", "b") as lab:
        ids = lab.submit(*(lab.job(f"j{n}", 4) for n in range(12)), lab.job("c", 1))
        (wanted,) = lab.submit(lab.job("own", 1), options="--node c")
        wait_for(lambda: lab.count("begin") >= 2, "the beginnings")
        lab.add_node("c", "2")
        assert lab.begin_join("c").wait(120).code == 0
        rows = lab.wait([*ids, wanted])
        assert {row.outcome for row in rows} == {"exited 0"}
        assert lab.count("begin") == 14
        nodes = [lab.node_of(job_id) for job_id in ids]
        assert nodes.count("c") >= 3


@pytest.mark.skipif(COMPILER is None, reason="no C compiler here to build the library that sets a clock off")
@pytest.mark.parametrize("shift_s", [-600, 600])
def test_a_node_whose_clock_is_wrong_is_fenced_in_time_and_its_times_are_corrected(
    shift_s: int, tmp_path: Path
) -> None:
    library = tmp_path / "clock.so"
    subprocess.run([COMPILER or "", "-shared", "-fPIC", "-o", library, TESTS / "support" / "clock.c"], check=True)
    with lab_of(tmp_path, "a") as lab:
        lab.add_node("b", "1", LD_PRELOAD=str(library), CLOCK_SHIFT_S=str(shift_s))
        assert lab.begin_join("b").wait(120).code == 0
        began = time.time()
        (row,) = lab.wait(lab.submit(lab.job("short", 2), options="--node b"))
        assert abs(lab.lines_of("short")["1 begin"].at - shift_s - began) < 60  # by the clock of the node
        assert began - 1 <= row.last.started_at <= time.time()
        assert row.last.ended_at is not None and 1.9 <= row.last.ended_at - row.last.started_at <= 60
        assert f"its clock is {shift_s:+} s off" in lab.head.gpusched("cluster", "status").out

        ids = lab.submit(lab.job("one", 14), lab.job("two", 14))
        wait_for(lambda: lab.count("begin") == 3, "the beginnings")
        cut_at = time.time()
        lab.cut_off("b", "freeze")
        rows = lab.wait(ids)
        fenced = next(line for line in lab.lines() if line.what == "term")
        assert fenced.at - shift_s <= cut_at + LEASE_S
        assert fenced.at - shift_s + MARGIN_S <= lab.lines_of(fenced.job)["2 begin"].at
        assert [row.outcome for row in rows] == ["exited 0", "exited 0"]
        assert not lab.count("overlap")


@pytest.mark.skipif(not network.can_be_made(), reason="needs root")
def test_a_job_goes_to_the_node_that_shares_its_directory(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "data").mkdir(parents=True)
    hide = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {own} && exec "$@"', "sh"]
    with lab_of(tmp_path, "a") as lab:
        lab.add_node("b", "4")
        assert lab.begin_join("b", within=hide).wait(120).code == 0
        cwd = f"--cwd {own}/data"
        ids = lab.submit(*(lab.job(f"j{n}", 0.5) for n in range(4)), options=cwd)
        (never,) = lab.submit("true", options=f"{cwd} --node b")
        assert {row.outcome for row in lab.wait(ids)} == {"exited 0"}
        assert {lab.node_of(job_id) for job_id in ids} == {"a"}
        explained = lab.head.gpusched("explain", "-q", "lab", str(never)).out
        assert f"it has no directory {own}/data" in explained


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_node_whose_disk_is_full_gets_nothing_and_loses_nothing(tmp_path: Path) -> None:
    with lab_of(tmp_path, "a") as lab, small_disk(tmp_path / "disk", 8) as disk:
        lab.add_node("b", "1", XDG_STATE_HOME=str(disk))
        token = lab.home / ".local/state/gpusched/clusters/lab.token"
        joined = lab.begin_join("b", "--token-file", str(token)).wait(120)
        assert joined.code == 0, joined.text
        (on_b,) = lab.submit(lab.job("b", 3, 7), options="--node b")
        wait_for(lambda: lab.count("begin") == 1, "the beginning")
        fill(disk / "filler")
        for words in ([" start -q "], ["ray::AgentActor"]):
            assert lab.kill(lab.nodes["b"], *words)
        ids = lab.submit(*(lab.job(f"a{n}", 0.5) for n in range(6)))
        (late,) = lab.submit(lab.job("late", 0.5), options="--node b")
        assert {row.outcome for row in lab.wait(ids)} == {"exited 0"}
        assert {lab.node_of(job_id) for job_id in ids} == {"a"}
        wait_for(lambda: "disk" in lab.head.gpusched("explain", "-q", "lab", str(late)).out, "the reason")
        (disk / "filler").unlink()
        rows = lab.wait([on_b, late])
        assert [row.outcome for row in rows] == ["exited 7", "exited 0"]
        assert sum(line.what == "begin" for line in lab.lines()) == 8
