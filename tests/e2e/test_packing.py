"""Forty jobs on four cards of two sizes: packed without an out-of-memory, and about as densely as can be."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from gpusched.core.model import JobRow
from gpusched.core.plan.snapshot import MARGIN_BYTES
from tests.e2e.test_rig import Rigged
from tests.support.packing import Piece, best, bound
from tests.support.rig import Machine, Rig, build_rig

MIB = 1 << 20
PLACES = 4  # --max-jobs-per-gpu
UNLUCKY = (
    1.5  # who keeps the order of the list and does not know how long a job takes, now and then has a long last one
)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return build_rig(tmp_path_factory.mktemp("rig"))


def sizes(machine: Machine) -> dict[str, int]:
    """By UUID the bytes that processes can have of each card."""
    found = {}
    for n in range(4):
        state = machine.fakegpu.read(str(machine.directory / f"gpu{n}" / "state"))
        found[machine.uuid(n)] = (int(state["total"]) - int(state["reserved"])) * MIB
    return found


def check_budgets(box: Rigged, capacity: dict[str, int]) -> None:
    """At no moment were more budgets on a card than it has, nor more jobs than may share it."""
    changes: dict[str, list[tuple[float, int, JobRow]]] = defaultdict(list)
    for row in box.jobs():
        for attempt in row.attempts:
            assert attempt.ended_at is not None
            for device in attempt.devices:
                changes[device.uuid] += [(attempt.started_at, 1, row.job), (attempt.ended_at, 0, row.job)]
    for uuid, moments in changes.items():
        on: dict[int, int] = {}
        for _, begins, job in sorted(moments, key=lambda change: change[:2]):
            on.pop(job.id, None)
            if begins:
                on[job.id] = job.mem_bytes
                assert sum(on.values()) + MARGIN_BYTES <= capacity[uuid]
                assert len(on) <= PLACES


def packed(rig: Rig, directory: Path, seed: int) -> float:
    """Run forty jobs of this seed: how much longer it took than the best packing found of the same jobs."""
    draw = random.Random(seed)
    jobs = [(draw.randint(3 << 10, 30 << 10), round(draw.uniform(0.5, 2), 2)) for _ in range(40)]
    models = "A100,A100,RTX3090,RTX3090"
    with (
        rig.machine(directory / "machine", gpus=4, model=models, release_ms=50) as machine,
        Rigged(directory / "box", machine) as box,
    ):
        lines = [f"[mem={mib}] {box.job(mib, f'--hold {hold}')}" for mib, hold in jobs]
        ended = box.run(*lines, options=f"--max-jobs-per-gpu {PLACES}")
        assert ended.code == 0, ended.text
        assert [len(row.attempts) for row in box.jobs()] == [1] * 40
        assert machine.audit()["ooms"] == 0
        assert all(peak <= board for peak, board in machine.most_held().values())
        capacity = sizes(machine)
        check_budgets(box, capacity)
        attempts = [(row.job, row.last) for row in box.jobs()]
    took = max(a.ended_at or 0.0 for _, a in attempts) - min(a.started_at for _, a in attempts)
    # as long as each took here, with all that belongs to a job: so the same overhead is in both
    pieces = [Piece(job.mem_bytes, (a.ended_at or 0.0) - a.started_at) for job, a in attempts]
    boards = [size - MARGIN_BYTES for size in capacity.values()]
    least, found = bound(pieces, boards, PLACES), best(pieces, boards, PLACES)
    print(f"{took:.2f} s; the best packing found {found:.2f} s, no packing below {least:.2f} s; {took / found:.2f}")
    return took / found


@pytest.mark.slow
def test_forty_jobs_on_four_cards_of_two_sizes(rig: Rig, tmp_path: Path) -> None:
    assert packed(rig, tmp_path, 0) <= UNLUCKY


@pytest.mark.soak
def test_forty_jobs_in_many_orders(rig: Rig, tmp_path: Path) -> None:
    ratios = [packed(rig, tmp_path / str(seed), seed) for seed in range(1, 10)]
    assert median(ratios) <= 1.25
    assert max(ratios) <= UNLUCKY
