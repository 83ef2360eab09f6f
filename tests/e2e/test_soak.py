"""Random nights on a box with three GPUs: lists, verbs, kills and GPUs that fail. Compared with a model of the list.

A night ends with everything mended and the list run to its end. Then each job has ended as the model says, none was
lost, none of those that ended well ran twice, and no two jobs met on a GPU. A seed makes a night, so a failure can be
played again: `python -m tests.e2e.test_soak SEED`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.box import SIMJOB, Box, Row, Running, wait_for

GPUS = 3
SECONDS_IN_CHECK, SECONDS_IN_SLOW = 30.0, 600.0
FINAL = {"succeeded", "failed", "cancelled"}


@dataclass
class Job:
    """What a job of the list does, and what may have been done to it."""

    number: int
    code: int
    after: int = 0  # number of the job that has to succeed first
    gpus: int = 1
    retries: int = 0
    seconds: float = 0.1
    is_touched: bool = False  # somebody has cancelled it, or queued it again
    may_repeat: bool = False  # its shepherd was killed, or its GPU was lost

    @property
    def line(self) -> str:
        words = [f"name=j{self.number}", f"gpus={self.gpus}", f"retries={self.retries}"]
        words += [f"after=j{self.after}"] * bool(self.after)
        work = f"{SIMJOB} --mem 300 --hold {self.seconds:.2f}" if self.gpus else f"sleep {self.seconds:.2f}"
        return (
            f"[{' '.join(words)}] echo '{self.number} begin' >> ledger; {work} || exit 9; "
            f"echo '{self.number} end {self.code}' >> ledger; exit {self.code}"
        )


class Night:
    """One list on one box, what is done to both, and the model of how its jobs end."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.box = Box(root, str(GPUS), {"GPUSCHED_GRACE": "1"})
        self.jobs: list[Job] = []
        self.history: list[str] = [f"seed {seed}"]
        self.dispatcher: Running | None = None
        self.broken: dict[str, float] = {}  # GPUs that are lost now, and since when
        self.losses: list[tuple[str, float, float]] = []  # what was mended: which GPU, from when until when
        self.add_jobs(self.random.randint(6, 14))

    def add_jobs(self, count: int) -> None:
        for _ in range(count):
            earlier = [job.number for job in self.jobs if not job.code]
            self.jobs.append(
                Job(
                    number=len(self.jobs) + 1,
                    code=self.random.choice((0, 0, 0, 3)),
                    after=self.random.choice(earlier) if earlier and self.random.random() < 0.25 else 0,
                    gpus=self.random.choice((0, 1, 1, 1, 2)),
                    retries=self.random.choice((0, 0, 1)),
                    seconds=self.random.uniform(0.0, 0.6),
                )
            )
        self.box.write(*(job.line for job in self.jobs))

    # ---- what happens in a night ----

    def start(self) -> None:
        if self.dispatcher is None or self.dispatcher.process.poll() is not None:
            self.dispatcher = self.box.start("run", "list.txt")
            self.history.append("start")

    def kill_dispatcher(self) -> None:
        if self.dispatcher is not None:
            self.dispatcher.process.kill()
            self.dispatcher.process.wait()
            self.history.append("kill the dispatcher")

    def kill_a_shepherd(self) -> None:
        shepherds = [pid for pid in self.box.processes() if "shepherd import main" in _command(pid)]
        if shepherds:
            for job in self.jobs:
                job.may_repeat = True  # nobody knows which job it had, and what that had done
            os.kill(self.random.choice(shepherds), signal.SIGKILL)
            self.history.append("kill a shepherd")

    def signal_dispatcher(self) -> None:
        number = self.random.choice((signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP))
        if self.dispatcher is not None and self.dispatcher.process.poll() is None:
            for job in self.jobs:
                job.may_repeat |= number == signal.SIGTERM  # what ran was stopped, maybe just after its last word
            self.dispatcher.signal(number)
            self.history.append(f"signal {number.name}")

    def use_a_verb(self) -> None:
        job = self.random.choice(self.jobs)
        verb = self.random.choice(("cancel", "hold", "release", "requeue", "status", "explain", "devices"))
        words = [verb, str(job.number)] if verb not in ("status", "devices") else [verb]
        ended = self.box.gpusched(*words)
        assert ended.code in (0, 1, 2, 3), ended
        assert "Traceback" not in ended.text, ended
        job.is_touched |= verb in ("cancel", "requeue")
        self.history.append(" ".join(words))

    def break_a_gpu(self) -> None:
        number = self.random.randrange(GPUS)
        change = self.random.choice(({"fail": "lost"}, {"present": 0}, {"foreign": 20000}))
        if "foreign" not in change:
            for job in self.jobs:
                job.may_repeat = True
            self.broken.setdefault(self.box.uuid(number), time.time())
        self.box.set_gpu(number, **change)
        self.history.append(f"GPU {number}: {change}")

    def mend_gpus(self) -> None:
        for number in range(GPUS):
            self.box.set_gpu(number, fail=None, present=None, foreign=None)
        self.box.set_box(fail=None)
        self.losses += [(uuid, since, time.time()) for uuid, since in self.broken.items()]
        self.broken.clear()
        self.history.append("mend the GPUs")

    def break_the_driver(self) -> None:
        self.box.set_box(fail="Driver/library version mismatch")
        self.history.append("break the driver")

    def append_to_list(self) -> None:
        self.add_jobs(self.random.randint(1, 3))
        self.history.append("add jobs")

    def play(self, steps: int) -> None:
        actions: list[tuple[Callable[[], None], int]] = [
            (self.start, 6),
            (self.kill_dispatcher, 3),
            (self.kill_a_shepherd, 1),
            (self.signal_dispatcher, 2),
            (self.use_a_verb, 4),
            (self.break_a_gpu, 2),
            (self.break_the_driver, 1),
            (self.mend_gpus, 3),
            (self.append_to_list, 1),
        ]
        self.start()
        names, weights = zip(*actions, strict=True)
        for _ in range(steps):
            time.sleep(self.random.uniform(0.0, 0.4))
            self.random.choices(names, weights)[0]()

    # ---- its end ----

    def finish(self) -> None:
        """Mend everything and run the list until nothing is left to do."""
        self.mend_gpus()
        wait_for(self._is_over, "the end of the night", 60)

    def _is_over(self) -> bool:
        rows = self.box.jobs()
        if len(rows) == len(self.jobs) and all(row.state in FINAL for row in rows):
            return self.dispatcher is None or self.dispatcher.process.poll() is not None
        if self.dispatcher is not None and "is in quarantine" in self.dispatcher.said():
            self.kill_dispatcher()  # the next one knows nothing of that, and nobody waits for five minutes
        held = [str(row.job.id) for row in rows if row.state == "held"]
        if held:
            self.box.gpusched("release", *held)
        self.start()
        time.sleep(0.1)
        return False

    def check(self) -> None:
        states = {row.job.id: row.state for row in self.box.jobs()}
        lines = Counter(self.box.read("ledger").splitlines())
        for job in self.jobs:
            state = states[job.number]
            begins, ends = lines[f"{job.number} begin"], lines[f"{job.number} end {job.code}"]
            if not job.is_touched and not (job.after and self.jobs[job.after - 1].is_touched):
                expected = self._expected(job, states)
                assert state == expected or self._failed_by_an_unseen_loss(job), f"job {job.number} is {state}"
            assert begins <= len(self._row(job).attempts), f"job {job.number} began {begins} times"
            if state == "succeeded":
                assert ends, f"job {job.number} succeeded without having run to its end"
                assert ends == 1 or job.is_touched or job.may_repeat, f"job {job.number} ran to its end {ends} times"
        report = self.box.audit()
        assert not report.clashes, "\n".join(map(str, report.clashes))
        assert self.box.claimed() == set()

    def _row(self, job: Job) -> Row:
        return self.box.jobs()[job.number - 1]

    def _expected(self, job: Job, states: dict[int, str]) -> str:
        if job.after and states[job.after] != "succeeded":
            return "cancelled"
        return "failed" if job.code else "succeeded"

    def _failed_by_an_unseen_loss(self, job: Job) -> bool:
        """True if a GPU of the job was lost while it ran, and the dispatcher that judged it cannot have known that.

        There was none then, or the driver did not answer, or the GPU was back too soon. Such a job fails as any other.
        """
        row = self._row(job)
        if row.state != "failed" or row.outcome != "exited 9" or row.last.ended_at is None:
            return False
        began, ended = row.last.started_at, row.last.ended_at
        gpus = [device.uuid for device in row.last.devices]
        was_lost = any(gpu in gpus and since <= ended and began <= until for gpu, since, until in self.losses)
        said = (
            (self.box.queue() / "dispatcher.log").read_text().rpartition(f"job {job.number} (j{job.number}) failed")[0]
        )
        said = said.rpartition(" dispatching ")[2].rpartition(f"job {job.number} on GPU")[2]
        was_seen = any(gpu in line and "set aside" in line for line in said.splitlines() for gpu in gpus)
        return was_lost and not was_seen


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def play_night(root: Path, seed: int) -> None:
    night = Night(root, seed)
    with night.box:
        try:
            night.play(night.random.randint(5, 14))
            night.finish()
            night.check()
        except AssertionError as error:
            said = night.dispatcher.said()[-3000:] if night.dispatcher else ""
            raise AssertionError(f"{error}\nnight: {'; '.join(night.history)}\nlast dispatcher:\n{said}") from None


def _play_for(root: Path, first_seed: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    seed = first_seed
    while time.monotonic() < end:
        play_night(root / str(seed), seed)
        seed += 1


@pytest.mark.slow
def test_some_nights(tmp_path: Path) -> None:
    _play_for(tmp_path, 1, SECONDS_IN_CHECK)


@pytest.mark.soak
def test_many_nights(tmp_path: Path) -> None:
    _play_for(tmp_path, random.randrange(1000, 1_000_000), SECONDS_IN_SLOW)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        play_night(Path(directory), int(sys.argv[1]))
