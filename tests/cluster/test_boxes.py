"""A head and two nodes of real processes, joined by Ray on loopback: what runs where, and what dies without a loss."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.box import SIMJOB, wait_for
from tests.support.lab import Lab

pytestmark = pytest.mark.slow
pytest.importorskip("ray")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab"), "a", "b") as lab:
        lab.start()
        yield lab


def test_each_gpu_works_and_colleagues_are_left_alone(lab: Lab) -> None:
    for gpu in (0, 1):
        lab.nodes["b"].colleague(gpu, 9000, hold_s=600)
    ids = lab.submit(*(f"{SIMJOB} --mem 2000 --hold 0.3" for _ in range(40)))
    rows = lab.wait(ids)
    assert [row.state for row in rows] == ["succeeded"] * 40
    used = {uuid.uuid for row in rows for uuid in row.last.devices}
    free = {lab.nodes["a"].uuid(n) for n in range(4)} | {lab.nodes["b"].uuid(n) for n in (2, 3)}
    assert used == free
    for box in lab.nodes.values():
        assert box.audit().clashes == []


def test_jobs_get_nothing_of_what_ray_sets(lab: Lab) -> None:
    script = lab.root / "look.py"
    script.write_text(
        "import os\n"
        "print('nice', os.nice(0), 'oom', open('/proc/self/oom_score_adj').read().strip())\n"
        "print('ray', sorted(n for n in os.environ if n.startswith('RAY_') or n == 'OMP_NUM_THREADS'))\n"
        "ignored = next(line for line in open('/proc/self/status') if line.startswith('SigIgn'))\n"
        "print('quit', bool(int(ignored.split()[1], 16) & 1 << 2))\n"
    )
    (job_id,) = lab.submit(f"python {script}")
    lab.wait([job_id])
    own = Path("/proc/self/oom_score_adj").read_text().strip()
    said = lab.head.gpusched("logs", "-q", "lab", str(job_id))
    assert said.out == f"nice {os.nice(0)} oom {own}\nray []\nquit False\n", said.text


def test_a_list_runs_once_and_its_log_is_followed_from_the_head(lab: Lab) -> None:
    lab.head.write("echo one; sleep 1; echo two; exit 4", "true", name="own.txt")
    run = lab.head.gpusched("run", "own.txt", "--cluster", "lab")
    assert run.code == 1 and "2 jobs added to lab\n" in run.err and run.out == "1 succeeded, 1 failed of 2 jobs\n"
    again = lab.head.gpusched("run", "own.txt", "--cluster", "lab", "--max-gpus", "2")
    assert "only a run on the GPUs of this box goes by --max-gpus; for those of the cluster: HOSTS" in again.err
    assert again.code == 1 and "0 jobs added to lab, 2 were there" in again.err
    (job_id,) = lab.submit("echo one; sleep 1; echo two; exit 4")
    followed = lab.head.gpusched("logs", "-q", "lab", "-f", str(job_id))
    assert (followed.code, followed.out) == (4, "one\ntwo\n")
    explained = lab.head.gpusched("explain", "-q", "lab", str(job_id)).out
    assert " of node a)" in explained or " of node b)" in explained


def test_a_job_that_no_node_takes_says_why(lab: Lab) -> None:
    job_id, other = (*lab.submit("true", options="--node c"), *lab.submit("true", options="--cwd /nowhere"))
    for number, reason in ((job_id, "the job wants node=c"), (other, "it has no directory /nowhere")):
        words = ("explain", "-q", "lab", str(number))
        wait_for(lambda words=words, reason=reason: reason in lab.head.gpusched(*words).out, "the reason")  # type: ignore[misc]
    assert lab.head.gpusched("cancel", "-q", "lab", str(job_id), str(other)).code == 0


def test_the_queue_of_a_cluster_is_dispatched_by_nobody_else(lab: Lab) -> None:
    refused = lab.head.gpusched("start", "-q", "lab")
    assert refused.code == 3 and "is the queue of the cluster lab" in refused.err


def test_a_wrong_token_and_a_missing_one_are_refused(lab: Lab, tmp_path: Path) -> None:
    box = lab.nodes["a"]
    words = ["cluster", "join", f"{lab.ip}:1", "--name", "other", "--node", "x", "--port", "1"]
    missing = box.gpusched(*words, HOME=str(tmp_path))
    assert missing.code == 2 and "there is no token of this cluster here" in missing.err
    token = lab.home / ".local/state/gpusched/clusters/lab.token"
    assert token.stat().st_mode & 0o777 == 0o600
    token.chmod(0o644)
    try:
        assert "others may read it" in box.gpusched(*words[:4], "lab", *words[5:]).err
    finally:
        token.chmod(0o600)


def test_a_token_that_is_not_that_of_the_head_is_refused_at_once(lab: Lab, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0" * 64)
    words = ["cluster", "join", f"{lab.ip}:{lab.port}", "--name", "lab", "--node", "x", "--port", str(lab.port + 400)]
    refused = lab.nodes["a"].gpusched(*words, "--token-file", str(token), HOME=str(tmp_path))
    assert refused.code == 3 and "its token is not that of the head" in refused.err


def test_a_head_that_is_not_reached_is_named_at_once(lab: Lab) -> None:
    began = time.monotonic()
    refused = lab.nodes["a"].gpusched("cluster", "join", f"{lab.ip}:1", "--name", "lab", "--node", "x", "--port", "1")
    assert refused.code == 3 and f"nobody answers at {lab.ip}:1: Connection refused" in refused.err
    assert time.monotonic() < began + 30


def test_another_version_of_ray_is_refused_before_anything_begins(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\n"
        "module = types.ModuleType('ray._version')\n"
        "module.version, module.commit = '2.61.7', ''\n"
        "sys.modules[module.__name__] = module\n"
    )
    words = ["cluster", "join", f"{lab.ip}:{lab.port}", "--name", "lab", "--node", "x", "--port", str(lab.port + 400)]
    refused = lab.nodes["a"].gpusched(*words, PYTHONPATH=str(tmp_path))
    python, ray = "{}.{}".format(*sys.version_info), version("ray")
    assert refused.code == 3
    assert f"x of lab: it has Ray 2.61.7 and Python {python}, and the head Ray {ray} and Python {python}" in refused.err
    assert f"on x, take a Python {python} and install ray=={ray} and the same gpusched there" in refused.err
    wait_for(lambda: not lab.pids(lab.nodes["a"], " lab x"), "the end of its keeper")
    assert not (lab.queue("x") / "devices.json").exists()  # no dispatcher ever began


KEEPER = "gpusched.cluster.keeper"


@pytest.mark.parametrize(
    "victims",
    [
        {"a": "ray::AgentActor", "b": " start -q "},  # on each node something else: Ray takes its time to come back
        {"a": "raylet/raylet", "b": KEEPER},
        {"head": "ray::HeadActor"},
    ],
)
def test_nothing_is_lost_when_processes_are_killed(lab: Lab, victims: dict[str, str]) -> None:
    name = f"k{len(lab.lines())}"
    before = lab.count("end")
    ids = lab.submit(*(lab.job(f"{name}-{n}", 2, n % 2 * 3) for n in range(8)))
    wait_for(lambda: sum(line.job.startswith(f"{name}-") for line in lab.lines()) >= 4, "the beginning")
    for who, word in victims.items():
        assert lab.kill(lab.head if who == "head" else lab.nodes[who], word)
    if KEEPER in victims.values():
        assert lab.begin_join("b").wait(120).code == 0
    rows = lab.wait(ids)
    assert [row.outcome for row in rows] == ["exited 0", "exited 3"] * 4
    assert lab.count("end") == before + 8  # none ran twice
    assert sum(line.job.startswith(f"{name}-") and line.what == "begin" for line in lab.lines()) == 8


def test_a_shepherd_that_is_killed_costs_a_repetition_and_nothing_else(lab: Lab) -> None:
    ids = lab.submit(lab.job("shepherd", 2))
    wait_for(lambda: any(line.job == "shepherd" for line in lab.lines()), "the beginning")
    assert lab.kill(lab.nodes["a"], "host.attempts.shepherd") + lab.kill(lab.nodes["b"], "host.attempts.shepherd")
    (row,) = lab.wait(ids)
    assert [each.outcome and each.outcome.kind.value for each in row.attempts] == ["lost", "exited"]
    assert [line.what for line in lab.lines() if line.job == "shepherd" and line.what != "term"] == [
        "begin",
        "begin",
        "end",
    ]


@pytest.mark.soak  # so that the others take less than two minutes
def test_a_node_without_power_loses_no_job_and_comes_back(lab: Lab) -> None:
    ids = lab.submit(*(lab.job(f"power{n}", 5) for n in range(8)))
    wait_for(lambda: sum(line.job.startswith("power") for line in lab.lines()) >= 6, "the beginning")
    lab.power_cut("a")
    joined = lab.begin_join("a")
    rows = lab.wait(ids)
    assert [row.state for row in rows] == ["succeeded"] * 8
    ends = [line.job for line in lab.lines() if line.job.startswith("power") and line.what == "end"]
    assert sorted(ends) == [f"power{n}" for n in range(8)]
    assert joined.wait(120).code == 0


@pytest.mark.soak  # Ray takes its time
def test_a_head_that_is_killed_whole_goes_on_where_it_was(lab: Lab) -> None:
    ids = lab.submit(*(lab.job(f"head{n}", 4) for n in range(8)))
    wait_for(lambda: sum(line.job.startswith("head") for line in lab.lines()) >= 4, "the beginning")
    wait_for(lambda: not lab.kill(lab.head, ""), "the end of the head", 20)
    time.sleep(1)
    assert lab.up().code == 0
    rows = lab.wait(ids, 150)
    assert [row.state for row in rows] == ["succeeded"] * 8
    begins = [line.job for line in lab.lines() if line.job.startswith("head") and line.what == "begin"]
    assert sorted(begins) == [f"head{n}" for n in range(8)]


def test_a_node_leaves_and_the_cluster_ends(lab: Lab) -> None:
    ids = lab.submit(*(lab.job(f"leave{n}", 2) for n in range(6)))
    wait_for(lambda: sum(line.job.startswith("leave") for line in lab.lines()) >= 4, "the beginning")
    left = lab.nodes["a"].gpusched("cluster", "leave", "--now", "--node", "a")
    assert left.code == 0, left.text
    assert not lab.pids(lab.nodes["a"], "gpusched", "ray")
    rows = lab.wait(ids)
    assert [row.state for row in rows] == ["succeeded"] * 6
    assert lab.head.gpusched("cluster", "down").code == 0
    wait_for(lambda: not lab.pids(lab.nodes["b"], "gpusched.cluster", "raylet"), "the end of the other node")
    assert not lab.pids(lab.head, "gpusched.cluster", "raylet", "gcs_server")
