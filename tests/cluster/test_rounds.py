"""Rounds over Ray: something is killed or cut off at a random moment, and all jobs end as they should.

`CLUSTER_ROUNDS=200 CLUSTER_SEED=7 pytest -s tests/cluster/test_rounds.py` makes as many rounds as that.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.support import network
from tests.support.box import Row, Running, wait_for
from tests.support.lab import RAY_AND_OURS, Lab

pytestmark = pytest.mark.soak
pytest.importorskip("ray")

ROUNDS = int(os.environ.get("CLUSTER_ROUNDS", "12"))
SEED = int(os.environ.get("CLUSTER_SEED", "1"))
LEASE_S = 30.0
NODE = {
    "agent": ["ray::AgentActor"],
    "raylet": ["raylet/raylet"],
    "dispatcher": [" start -q "],
    "shepherd": ["host.attempts.shepherd"],
    "keeper": ["gpusched.cluster.keeper"],
    "ray and ours": list(RAY_AND_OURS),
    "power": [""],
    "cut": [],
    "frozen": [],
}
HEAD = {
    "head actor": ["ray::HeadActor"],
    "gcs": ["gcs_server"],
    "head's raylet": ["raylet/raylet"],
    "head's keeper": ["gpusched.cluster.keeper"],
    "head's power": [""],
}
FORGETFUL = {"shepherd", "power"}  # they may take the news of an end along: the job runs again
NEED_A_JOIN = {"keeper", "ray and ours", "power"}
NEED_AN_UP = {"head's keeper", "head's power"}


class Round:
    """One round: some jobs, something that breaks, and what has become of them."""

    def __init__(self, lab: Lab, number: int, chance: random.Random) -> None:
        self._lab, self._chance = lab, chance
        self._codes = {f"r{number}-{n}": chance.choice((0, 0, 3)) for n in range(8)}
        kinds = [kind for kind in (*NODE, *HEAD) if kind != "cut" or lab.network is not None]
        self._kinds = {chance.choice(kinds)}
        if chance.random() < 0.25:  # two at once, none of them a cut: a box that is cut off cannot join
            self._kinds = set(chance.sample(sorted(set(kinds) - {"cut", "frozen"}), 2))
        self._node = chance.choice(list(lab.nodes))
        self._began_at = time.time()

    def run(self) -> str:
        """Run it to its end, and return what was seen. Raises AssertionError for what must not be."""
        lab, chance = self._lab, self._chance
        jobs = [lab.job(name, round(chance.uniform(0.2, 4), 2), code) for name, code in self._codes.items()]
        ids = lab.submit(*jobs)
        wait_for(lambda: self._lines("begin"), "the first beginning", 120)
        time.sleep(chance.uniform(0, 3))
        mending = self._break()
        rows = lab.wait(ids, 240)
        if mending is not None:
            ended = mending.wait(180)
            assert ended.code == 0, ended.text
        self._check(rows)
        runs = Counter(len(row.attempts) for row in rows)
        what = " and ".join(sorted(self._kinds))
        return f"{what} of {self._node}: {time.time() - self._began_at:.0f} s, jobs by attempts {dict(runs)}"

    def _lines(self, what: str) -> Counter[str]:
        return Counter(line.job for line in self._lab.lines() if line.job in self._codes and line.what == what)

    def _break(self) -> Running | None:
        for kind in sorted(self._kinds):
            self._hit(kind)
        if self._kinds & (NEED_A_JOIN | NEED_AN_UP):
            time.sleep(self._chance.choice((0.1, 3)))
        if self._kinds & NEED_AN_UP:
            up = self._lab.up()
            assert up.code == 0, up.text
        return self._lab.begin_join(self._node) if self._kinds & NEED_A_JOIN else None

    def _hit(self, kind: str) -> None:
        lab, node = self._lab, self._lab.nodes[self._node]
        if kind in ("cut", "frozen"):
            way = "cable" if kind == "cut" else "freeze"
            lab.cut_off(self._node, way)
            time.sleep(self._chance.choice((2, 8, 1.3 * LEASE_S)))
            lab.join_again(self._node, way)
        elif kind == "shepherd":
            pids = lab.pids(node, *NODE[kind])
            for pid in pids and [self._chance.choice(pids)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        elif kind == "head's power":
            wait_for(lambda: not lab.kill(lab.head, ""), "the end of the head", 20)
        elif kind == "power":
            lab.power_cut(self._node)
        else:
            lab.kill(lab.head if kind in HEAD else node, *{**NODE, **HEAD}[kind])

    def _check(self, rows: list[Row]) -> None:
        """Each job has ended once as it says; it may have run before only where the news of that could not come."""
        lines = self._lab.lines()
        for row, (name, code) in zip(rows, self._codes.items(), strict=True):
            said = [(line.attempt, line.what) for line in lines if line.job == name]
            ends = [(each.outcome.kind.value, each.outcome.note) for each in row.attempts if each.outcome]
            story = (self._kinds, name, ends, said)
            assert row.outcome == f"exited {code}", story
            assert [kind for kind, _ in ends].count("exited") == 1, story
            assert "overlap" not in [what for _, what in said], story
            assert (f"{row.job.id}.{len(ends)}", "end") in said, story
            for number, (kind, note) in enumerate(ends[:-1], 1):
                if (f"{row.job.id}.{number}", "end") in said:
                    assert kind == "lost" and ("was not heard of" in note or self._kinds & FORGETFUL), story


def test_rounds(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    nodes = ["a", "b"]
    with (
        network.Network(nodes) if network.can_be_made() else nullcontext() as net,
        Lab(tmp_path, *nodes, gpus="2", lease=f"{LEASE_S:g}", network=net) as lab,
    ):
        lab.start()
        for number in range(1, ROUNDS + 1):
            print(f"round {number}: {Round(lab, number, chance).run()}", flush=True)
