"""Keeps the samples for the report of a queue: folds polls into stretches of time, and appends these to their file."""

from __future__ import annotations

from collections.abc import Sequence

from gpusched.core.model import JobState
from gpusched.core.plan.board import Board
from gpusched.core.plan.snapshot import Reason
from gpusched.core.samples import Stretch, count_waits, merge, stretch_of
from gpusched.dispatcher.timers import Moment
from gpusched.host.queue.samples import SampleFile
from gpusched.host.store import Store, job_table, startable_jobs

POLLS = 5  # of a stretch, when it is written; a killed dispatcher loses no more
LONGEST_S = 60.0  # a poll tells of no more time before it: the box may have slept
OF_THE_JOB = ("back_off", "begin", "cpu_jobs", "never")  # reasons for which no GPU is idle
COUNTED = (JobState.QUEUED, JobState.HELD, JobState.RUNNING)


class Sampler:
    def __init__(self, path: str, store: Store) -> None:
        self._file, self._store = SampleFile(path), store
        self._open: Stretch | None = None  # not written yet
        self._polls = POLLS - 1  # in it; the first one is as short as can be, for who looks early
        self._polled_s: float | None = None

    def take(self, board: Board, reasons: Sequence[Reason], now: Moment) -> None:
        """Take in what a poll shows. `reasons` are those of the first waiting jobs."""
        before_s, self._polled_s = self._polled_s, now.monotonic_s
        if before_s is None or now.monotonic_s <= before_s:
            return
        for_gpus = (reason.shortage for reason in reasons if reason.shortage not in OF_THE_JOB)
        stretch = stretch_of(board, min(LONGEST_S, now.monotonic_s - before_s), next(for_gpus, ""))
        self._open = stretch if self._open is None else merge(self._open, stretch)
        self._polls += 1
        if self._polls >= POLLS:
            self.write(reasons)

    def write(self, reasons: Sequence[Reason]) -> None:
        """Append the stretch that is open, with the numbers of jobs as they are now. Raises OSError."""
        if (stretch := self._open) is None:
            return
        counts = job_table.counts(self._store)
        stretch.states = {state.value: float(counts[state]) for state in COUNTED}
        stretch.waits = read_waits(self._store, reasons, stretch.ended_at)
        self._open, self._polls = None, 0
        self._file.append(stretch)


def read_waits(store: Store, reasons: Sequence[Reason], now: float) -> dict[str, float]:
    """Return how many jobs wait, by what they wait for. `reasons` are those of the first ones."""
    ready, others = startable_jobs.count_waiting(store, now)
    return count_waits(reasons, ready, {**others, "held": job_table.counts(store)[JobState.HELD]})
