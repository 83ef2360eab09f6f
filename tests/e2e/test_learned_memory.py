"""Jobs with mem=auto, whose memory is learned from their siblings: on the simulation, and on the simulated driver."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_rig import Rigged
from tests.support.box import SIMJOB, UNTIL_GO, Box, wait_for
from tests.support.rig import Rig, build_rig

SETTLES = {"GPUSCHED_MAX_CHECKS": "3", "GPUSCHED_POLL_INTERVAL": "0.1"}
REPORT = """echo '{"ready": %s, "memory_bytes": %d}' > $GPUSCHED_PROGRESS"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, "1xRTX3090", environment=SETTLES) as box:
        yield box


def together(box: Box, queue: str = "list") -> tuple[int, list[int]]:
    """Return the most jobs at once; and at each end but the first, how many had been at once while others waited."""
    attempts = [attempt for row in box.jobs(queue) for attempt in row.attempts]
    moments = sorted([(a.started_at, 1) for a in attempts] + [(a.ended_at or 0.0, -1) for a in attempts])
    last_start = max(a.started_at for a in attempts)
    now, most, at_ends = 0, 0, []
    for at, change in moments:
        if change < 0 and at < last_start:
            at_ends.append(now)
        now += change
        most = max(most, now)
    return most, at_ends[1:]


def explained(box: Box, job: int = 1) -> str:
    return box.gpusched("explain", str(job), "-q", str(box.queue())).out


def test_siblings_join_the_first_one_when_its_memory_has_settled(box: Box) -> None:
    not_yet = REPORT % ("false", 1)
    held = f"{not_yet}; {SIMJOB} --mem 7000 --hold 2 & {UNTIL_GO}; {REPORT % ('true', 1)}; wait"
    lines = [f"[mem=auto tag=t] {SIMJOB} --mem 7000 --hold 2 # {n}" for n in range(3)]
    running = box.start("run", box.write(f"[mem=auto tag=t] {held}", *lines))
    wait_for(lambda: "waits until the memory of job 1 has settled (mem=auto)" in explained(box, 2))
    (box.work / "go").touch()
    assert running.wait().code == 0
    starts = [row.last.started_at for row in box.jobs()]
    assert all(later - earlier >= 0.3 for earlier, later in itertools.pairwise(starts[1:3]))  # one at a time
    assert together(box)[0] == 3
    known = "have used 7000 MiB at most (by process) on NVIDIA GeForce RTX 3090: they count with 7777 MiB"
    assert known in explained(box)
    assert box.metrics()["jobs"][0]["learns_memory"] is True


def test_what_was_learned_outlives_the_dispatcher_and_can_be_set(box: Box) -> None:
    lines = [f"[mem=auto tag=t] {SIMJOB} --mem 7000 --hold 0.8 # {n}" for n in range(4)]
    assert box.run(lines[0]).code == 0
    assert box.run(*lines).code == 0
    starts = sorted(row.last.started_at for row in box.jobs()[1:])
    assert min(later - earlier for earlier, later in itertools.pairwise(starts)) < 0.3  # they know already
    assert box.gpusched("set", "mem.t=18G", "max-fails=2", "-q", str(box.queue())).code == 0
    assert "the jobs tagged t count with 18432 MiB: gpusched set mem.t" in explained(box)
    assert box.run(*lines, *[f"[mem=auto tag=t] {SIMJOB} --mem 700 --hold 0.3 # {n}" for n in range(2)]).code == 0
    first, second = [row.last for row in box.jobs()[4:]]
    assert second.started_at >= (first.ended_at or 0.0)
    assert box.gpusched("set", "mem.t=", "-q", str(box.queue())).code == 0
    assert "is not known yet" in explained(box)
    wrong = box.gpusched("set", "mem.t=much", "-q", str(box.queue()))
    assert wrong.code == 2 and "mem.t: is 'much', but must be MiB (500) or a number with a unit" in wrong.err


@pytest.mark.slow
def test_an_out_of_memory_beside_siblings_spends_no_try(box: Box) -> None:
    """Of what they have at first three fit, of what they take in the end two."""
    job = f"[mem=auto tag=t] {SIMJOB} --mem 7000 --peak 11500 --hold 5"
    ended = box.run(*[f"{job} # {n}" for n in range(5)])
    assert ended.code == 0, ended.text
    rows = box.jobs()
    failed = [a.outcome.cause for row in rows for a in row.attempts if a.outcome is not None and not a.outcome.ok]
    assert set(failed) == {"crowded_oom"}
    assert [row.job.tries for row in rows] == [1] * 5 and max(row.job.losses for row in rows) <= 3
    assert "out of GPU memory beside other jobs" in ended.text
    assert "since an out-of-memory" in explained(box)


def test_alone_on_a_card_an_out_of_memory_fails_as_usual(box: Box) -> None:
    ended = box.run(f"[mem=auto tag=t] {SIMJOB} --mem 90000", f"[mem=auto] {SIMJOB} --mem 90000")
    assert ended.code == 1
    assert [row.last.outcome.cause for row in box.jobs() if row.last.outcome is not None] == ["gpu_oom"] * 2
    assert "mem=auto without a tag: it has its GPU alone" in explained(box, 2)


@pytest.mark.slow
@pytest.mark.parametrize("reports", [True, False])
def test_where_processes_cannot_be_told_apart_only_those_share_that_report_their_memory(
    box: Box, reports: bool
) -> None:
    box.set_gpu(0, hidden=1)
    report = f"{REPORT % ('true', 7000 << 20)}; " if reports else ""
    ended = box.run(*[f"[mem=auto tag=t] {report}{SIMJOB} --mem 7000 --hold 1.5 # {n}" for n in range(5)])
    assert ended.code == 0, ended.text
    assert together(box)[0] == (3 if reports else 1)
    by = "their own report" if reports else "the change of the GPU's memory"
    assert f"have used 7000 MiB at most (by {by})" in explained(box)
    assert {job["memory_by"] for job in box.metrics()["jobs"]} == {"report" if reports else "device"}


# ---- on the simulated driver -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return build_rig(tmp_path_factory.mktemp("rig"))


MIB = (1500, 4700, 5700, 7300, 9900, 11300, 14000, 22000)
LONG = [pytest.param(mib, late, marks=pytest.mark.soak) for mib in MIB for late in (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize(("mib", "late"), [(4700, False), (7300, True), *LONG])
def test_nearly_as_many_share_a_card_as_if_they_had_stated_their_memory(
    rig: Rig, tmp_path: Path, mib: int, late: bool
) -> None:
    with (
        rig.machine(tmp_path / "machine", gpus=1, model="RTX3090", release_ms=50) as machine,
        Rigged(tmp_path / "box", machine, **SETTLES) as box,
    ):
        job = box.job(mib, "--hold 1.6")
        if late:
            base = mib * 2 // 5
            job = f"({box.job(base, '--hold 1.6')} & sleep 1; {box.job(mib - base, '--hold 0.4')} && wait)"
        kinds = {
            kind: [f"[mem={kind} tag=t] {job} # {n}" for n in range(7 if mib < 8000 else 5)]
            for kind in ("auto", str(mib))
        }
        found = {}
        for kind, lines in kinds.items():
            ended = box.gpusched("run", box.write(*lines, name=f"{kind}.txt"))
            assert ended.code == 0, ended.text
            found[kind] = together(box, kind)
        assert max(found["auto"][1]) >= found[str(mib)][0] - 1  # at each moment: the simulated clock says so
