"""The files of a queue that a dispatcher keeps for others: the board, the metrics, the samples, text for Prometheus."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from gpusched import __version__
from gpusched.core.exposition import QueueTotals, exposition
from gpusched.core.plan.board import Board, device_document
from gpusched.core.plan.snapshot import Reason
from gpusched.dispatcher.attempts.open_attempt import OpenAttempt
from gpusched.dispatcher.sampler import Sampler, read_waits
from gpusched.dispatcher.timers import Moment, Timer
from gpusched.host.queue import metrics, published, textfile
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, TransientError, attempt_table, dispatch_table, job_table, queue_totals

log = logging.getLogger("gpusched.dispatcher")

METRICS_EVERY_S = 30.0


class QueueFiles:
    def __init__(self, queue: QueueDir, store: Store) -> None:
        self.reasons: tuple[Reason, ...] = ()  # of the first waiting jobs, by the newest plan
        self._queue, self._store = queue, store
        self._sampler = Sampler(queue.samples, store)
        self.metrics_timer = Timer()
        self._board: Board | None = None  # as published
        self._textfile_dir: str | None = None
        self.faults: list[str] = []  # not reported yet
        self._noted_faults: set[str] = set()
        self._dispatch = 0  # the number of this dispatcher in the store, from begin() on

    def begin(self, at: float) -> None:
        self._dispatch = dispatch_table.begin(self._store, at, __version__)

    def publish(self, board: Board, now: Moment) -> None:
        """Replace the board that other commands read, and keep it as a sample."""
        self._board = board
        published.write(self._queue.board, board)
        with self._noted("no samples for the report are kept"):
            self._sampler.take(board, self.reasons, now)

    def update(self, running: Iterable[OpenAttempt], now: Moment, textfile_dir: str | None) -> None:
        """Replace gpu_metrics.json and the text for Prometheus, if it is time for that."""
        if self.metrics_timer.is_due(now):
            self.metrics_timer.restart(now, METRICS_EVERY_S)
            self._textfile_dir = textfile_dir
            self._expose(now, is_up=True)
            self.write(now, running, every_job=False)

    def _expose(self, now: Moment, *, is_up: bool) -> None:
        if self._textfile_dir:
            totals = QueueTotals(
                job_table.current_counts(self._store),
                read_waits(self._store, self.reasons, now.at),
                *queue_totals.ended_attempts(self._store),
            )
            text = exposition(self._queue.path, self._board, totals, version=__version__, is_up=is_up)
            with self._noted(f"metrics_textfile: nothing is written to {self._textfile_dir}"):
                textfile.write(self._textfile_dir, self._queue, text)

    @contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """Remember an error that ends the block, to be reported once, and go on: jobs do not wait for these files."""
        try:
            yield
        except OSError as error:
            text = f"{what}: {error.strerror or error}"
            if text not in self._noted_faults:
                self._noted_faults.add(text)
                self.faults.append(text)

    def write(self, now: Moment, running: Iterable[OpenAttempt], *, every_job: bool) -> None:
        """Replace gpu_metrics.json, and keep what the open attempts have used so far for the next dispatcher."""
        for attempt in running:
            attempt_table.save_usage(
                self._store, attempt.job.id, attempt.row.number, attempt.use.usage, attempt.use.progress_text()
            )
        dispatch_table.touch(self._store, self._dispatch, now.at)
        board = self._board
        devices = [device_document(item, board) for item in board.devices] if board else []
        metrics.write(self._queue.metrics, self._store, devices, self._queue.path, now.at, every_job=every_job)

    def leave(self, now: Moment) -> None:
        """Note the end of this dispatcher, and withdraw the board."""
        try:
            self._expose(now, is_up=False)
            with self._noted("no samples for the report are kept"):
                self._sampler.write(self.reasons)
            dispatch_table.touch(self._store, self._dispatch, now.at)
        except TransientError as error:
            log.warning("%s; when this dispatcher was last here is not noted", error.what)
        with suppress(FileNotFoundError):
            os.unlink(self._queue.board)
