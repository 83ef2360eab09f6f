"""Reads the lists of a feed into the queue: a list whole or not at all, a stream line by line. Starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpusched.common.errors import GpuschedError
from gpusched.core.jobs.reconcile import QueueChange
from gpusched.core.model import Device, JobSpec
from gpusched.dispatcher.jobs.feed import Batch, Feed
from gpusched.dispatcher.timers import Moment
from gpusched.host.store import Store, StoreError
from gpusched.lists.findings import render_findings
from gpusched.lists.submit import SubmitOptions, find_impossible, refuse_impossible, submit

Report = Callable[[str, str], None]  # kind of the event, text


class ListReader:
    """`refused_lines` counts the lines of a stream that were left out."""

    def __init__(self, feed: Feed, store: Store) -> None:
        self.refused_lines = 0
        self.feed, self._store = feed, store
        self._batch: Batch | None = None  # read, and not stored yet
        self._left_out: set[JobSpec] = set()  # of the stream

    def is_done(self) -> bool:
        """Return True if all that was read is stored, and nothing more can be on its way now."""
        return self._batch is None and self.feed.ended()

    def take(self, options: SubmitOptions, devices: Sequence[Device], now: Moment, report: Report) -> bool:
        """Submit what has come; return True if there was anything. `devices` are the allowed ones.

        Raises TransientError or OSError when it cannot be stored now; it is then taken at the next call.
        """
        taken = False
        try:
            while (batch := self._next(now.monotonic_s, report)) is not None:
                # wanted once: what has failed since then stays so
                again = options if batch.append else replace(options, retry_failed=False)
                changes = self._submit(batch, again, devices, now.at, report)
                self._batch, taken = None, True
                counts = [
                    (sum(len(change.add) for change in changes), "new"),
                    (sum(len(change.cancel) for change in changes), "removed"),
                    (sum(len(change.requeue) for change in changes), "back"),
                ]
                parts = ", ".join(f"{number} {word}" for number, word in counts if number)
                if parts:
                    report("queue", f"the list was read: {parts}")
        except StoreError:
            raise
        except GpuschedError as error:
            self._batch = None
            report("warning", f"the list was changed but is not taken: {error}")
        return taken

    def _next(self, now_s: float, report: Report) -> Batch | None:
        if self._batch is not None:
            return self._batch
        try:
            batch = self.feed.poll(now_s)
        except OSError as error:
            report("warning", f"the list cannot be read: {error}")
            return None
        if batch is not None and batch.jobs.errors:
            self.refused_lines += len(batch.jobs.errors)
            report("error", _left_out_text("\n" + render_findings(batch.jobs.errors, "standard input")))
        self._batch = batch
        return batch

    def _submit(
        self, batch: Batch, options: SubmitOptions, devices: Sequence[Device], at: float, report: Report
    ) -> list[QueueChange]:
        specs = tuple(spec for spec in batch.jobs.specs if spec not in self._left_out)
        options.look_around(specs)
        if not batch.append:
            refuse_impossible(specs, options, devices)
            return [submit(self._store, specs, options, at, complete=batch.complete)]
        for spec, why in find_impossible(specs, options, devices):
            self._leave_out(spec, f" line {spec.line}: {why}", report)
        return self._append([spec for spec in specs if spec not in self._left_out], options, at, report)

    def _append(self, specs: Sequence[JobSpec], options: SubmitOptions, at: float, report: Report) -> list[QueueChange]:
        """Submit lines of a stream; where one of them is refused, each by itself."""
        try:
            return [submit(self._store, specs, options, at, complete=False, append=True)]
        except StoreError:
            raise
        except GpuschedError as error:
            if len(specs) != 1:
                return [change for spec in specs for change in self._append([spec], options, at, report)]
            self._leave_out(specs[0], f" {error}", report)
            return []

    def _leave_out(self, spec: JobSpec, why: str, report: Report) -> None:
        self._left_out.add(spec)
        self.refused_lines += 1
        report("error", _left_out_text(why))


def _left_out_text(why: str) -> str:
    return f"left out, for it cannot be right (the other lines run):{why}"
