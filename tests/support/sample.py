"""A queue in the middle of its work, made by the store's own verbs with fixed times, and the board beside it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpusched.config.settings import Settings
from gpusched.core.jobs.lifecycle import judge
from gpusched.core.model import (
    MIB,
    Device,
    DeviceProcess,
    DeviceUse,
    JobSpec,
    JobState,
    Outcome,
    OutcomeKind,
    Requirements,
    Sample,
    Usage,
)
from gpusched.core.plan.availability import Availability, DeviceState
from gpusched.core.plan.board import Board, BoardDevice
from gpusched.core.plan.snapshot import DeviceView, Limits, Resident
from gpusched.host.queue import published, queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, dispatch_table, job_table, meta_table, submission
from gpusched.host.store.attempt_table import AttemptEnd
from gpusched.operations import queues
from tests.support import build

NOW = 1_760_000_000.0  # 08:53:20 UTC
PID = 4242
TOTAL = 81920 * MIB
NAME = "NVIDIA A100-SXM4-80GB"

EXIT_3 = Outcome(OutcomeKind.EXITED, exit_code=3)
OOM = Outcome(OutcomeKind.EXITED, exit_code=1, cause="gpu_oom")
OK = Outcome(OutcomeKind.EXITED, exit_code=0)


def gpu(index: int) -> Device:
    return build.device(
        index,
        uuid=f"GPU-0000000{index}-aaaa",
        name=NAME,
        total_bytes=TOTAL,
        bus_id=f"00000000:0{index + 1}:00.0",
    )


def view(
    index: int,
    state: DeviceState,
    why: str = "",
    *,
    used: int = 0,
    foreign: int | None = None,
    count: int = 0,
    who: tuple[DeviceProcess, ...] = (),
    util: float = 0.0,
    held: bool = False,
    refused: str = "",
) -> DeviceView:
    uuid = gpu(index).uuid
    sample = Sample(uuid, NOW - 1, used * MIB, TOTAL, who, util)
    others = used if foreign is None else foreign
    known = Availability(uuid, count, state, why or state.value, NOW - 60, sample, others * MIB)
    return build.device_view(index, availability=known, total_gib=TOTAL / build.GIB, held=held, refused=refused)


BO = DeviceProcess(51, 60988 * MIB, "C", "bo", "python")
EVIL = DeviceProcess(52, 12 * MIB, "C", "ev\x1b[31mil", "x\ny")


def _residents(job_id: int | None) -> tuple[Resident, ...]:
    return () if job_id is None else (Resident(job_id, 0),)


def a_board(**changes: object) -> Board:
    """Four GPUs: ours, busy, being counted, and claimed by a colleague."""
    views = (
        view(0, DeviceState.RUNNING, "runs a job of this queue", used=8012, foreign=12, util=0.93, count=10, held=True),
        view(
            1,
            DeviceState.BUSY,
            "61000 MiB in use by bo's python (pid 51) and 1 more, threshold 500 MiB",
            used=61000,
            util=0.5,
            who=(BO, EVIL),
        ),
        view(2, DeviceState.CHECKING, "free at 3 of 10 checks", used=4, count=3),
        view(3, DeviceState.FREE, "free", used=4, count=10, refused="claimed by cy's gpusched"),
    )
    jobs = {0: 3}
    devices = tuple(BoardDevice(gpu(n), replace(v, residents=_residents(jobs.get(n)))) for n, v in enumerate(views))
    made = Board(NOW - 1.4, PID, "simulated GPUs (4 A100)", Limits(4, 2), 10, 500 * MIB, devices)
    return replace(made, **changes)  # type: ignore[arg-type]


COMMANDS = (
    b"python prepare.py",  # 1: succeeded
    b"python train.py --lr 0.1",  # 2: failed, exit 3
    b"HF_TOKEN=hf_abcdefghijklmnopqrstuvwx python train.py --lr 0.01",  # 3: running
    b"python train.py --batch 512",  # 4: failed after a retry, out of memory
    b"python train.py --lr 0.001",  # 5: waits
    b"python eval.py \xff\x1b[31m",  # 6: waits, with bytes that no terminal should get
    b"python train.py --lr 1",  # 7: waits: tried again later
    b"python eval.py --all",  # 8: cancelled by a person
    b"python old.py",  # 9: its line is gone
)


class Sample9:
    """The queue of runs/commands with nine jobs. Close it, or let the fixture do so."""

    def __init__(self, home: Path, name: str = "commands") -> None:
        self.home = home
        self.place: QueueDir = queue_dirs.locate(str(home / "gpusched-runs" / name))
        queue_dirs.prepare(self.place)
        self.store = Store(self.place.database, create=True)
        meta_table.write(self.store, "source", str(home / f"{name}.txt").encode())
        meta_table.write(self.store, "settings", Settings().to_json())

    def fill(self) -> None:
        store = self.store
        specs = [JobSpec(text, text, line) for line, text in enumerate(COMMANDS, 2)]
        with store.transaction():
            first = NOW - 3600
            submission.submit(store, specs, lambda _: Requirements(retries=1, cwd=b"/home/ann/project"), first)
            dispatch = dispatch_table.begin(store, first, "1.0")
            dispatch_table.touch(store, dispatch, NOW - 30)
            self.attempt(1, OK, 10, 70, gpus=(0,), used=Usage(30, 900 * MIB, 800.0 * MIB, 0.42, 7200.0))
            self.attempt(2, EXIT_3, 70, 75, gpus=(0,))
            self.attempt(2, EXIT_3, 80, 86, gpus=(2,))
            self.attempt(4, OOM, 90, 150, gpus=(2,), used=Usage(30, 40000 * MIB, 30000.0 * MIB, 0.9))
            self.attempt(4, OOM, 160, 240, gpus=(2,), used=Usage(30, 80000 * MIB, 60000.0 * MIB, 0.9))
            self.attempt(7, EXIT_3, 3520, 3595, gpus=(2,), delay_s=20.0)
            self.start(3, 3500, gpus=(0,))
            job_table.cancel(store, 8, first + 100)
            submission.submit(
                store, specs[:-1], lambda _: Requirements(retries=1, cwd=b"/home/ann/project"), first + 200
            )

    def start(self, job_id: int, after_s: float, *, gpus: tuple[int, ...] = ()) -> int:
        job = job_table.get(self.store, job_id)
        number = job.attempts + 1
        uses = [DeviceUse(gpu(n).uuid, n, NAME, TOTAL) for n in gpus]
        log = f"logs/{job_id:04d}.{number}-python.log"
        assert attempt_table.start(self.store, job_id, NOW - 3600 + after_s, log, "", uses) == number
        return number

    def attempt(
        self,
        job_id: int,
        outcome: Outcome,
        began_s: float,
        ended_s: float,
        *,
        gpus: tuple[int, ...] = (),
        used: Usage = Usage(),  # noqa: B008
        delay_s: float = 0.0,
    ) -> JobState:
        number = self.start(job_id, began_s, gpus=gpus)
        job = job_table.get(self.store, job_id)
        verdict = judge(outcome, job, cancel_asked=False)
        verdict = verdict._replace(delay_s=delay_s)
        ended = NOW - 3600 + ended_s
        return attempt_table.close(
            self.store, job_id, number, AttemptEnd(outcome, ended, usage=used), verdict, now=ended
        )

    def publish(self, made: Board) -> None:
        published.write(self.place.board, made)

    def log(self, job_id: int, number: int, data: bytes) -> Path:
        path = Path(self.place.path) / f"logs/{job_id:04d}.{number}-python.log"
        path.write_bytes(data)
        return path

    def close(self) -> None:
        self.store.close()


def stand_still(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """A fixed clock in UTC, a home of its own, no settings from outside."""
    for name in ("GPUSCHED_CLAIMS_DIR", "GPUSCHED_SIMULATE", "GPUSCHED_SIMULATION", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(queues, "now", lambda: NOW)
    monkeypatch.chdir(home)


def dispatched_by(monkeypatch: pytest.MonkeyPatch, pid: int | None) -> None:
    monkeypatch.setattr(QueueDir, "dispatcher", lambda self: pid)
