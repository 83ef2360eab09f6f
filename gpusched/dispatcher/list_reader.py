"""Reads the lists of a feed into the queue: a list whole or not at all, a stream line by line. Starts nothing."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpusched.common.errors import GpuschedError
from gpusched.core.jobs.reconcile import QueueChange
from gpusched.core.model import Device, JobSpec
from gpusched.dispatcher.feed import Batch, Feed
from gpusched.dispatcher.timers import Moment
from gpusched.host.store import Store, StoreError
from gpusched.lists.findings import render_findings
from gpusched.lists.submit import SubmitOptions, find_impossible, refuse_impossible, submit

Report = Callable[[str, str], None]  # kind of the event, text


class ListReader:
    """`refused_lines` counts the lines of a stream that were left out."""

    def __init__(self, feed: Feed, store: Store) -> None:
        self.refused_lines = 0
        self._feed, self._store = feed, store
        self._batch: Batch | None = None  # read, and not stored yet
        self._left_out: set[JobSpec] = set()  # of the stream

    def attach(self, selector: selectors.BaseSelector) -> None:
        """Wake the dispatcher through its selector when there is something to read."""
        self._feed.attach(selector)

    def detach(self) -> None:
        self._feed.detach()

    def is_done(self) -> bool:
        """Return True if all that was read is stored, and nothing more can be on its way now."""
        return self._batch is None and self._feed.ended()

    def deadline_s(self) -> float | None:
        """Return when take() wants to be called at the latest."""
        return self._feed.deadline()

    def take(self, options: SubmitOptions, devices: Sequence[Device], now: Moment, report: Report) -> bool:
        """Submit what has come; return True if there was anything. `devices` are the allowed ones.

        Raises DiskFull or OSError when there is no room for it; it is then taken at the next call.
        """
        taken = False
        try:
            while (batch := self._next(now.monotonic_s, report)) is not None:
                # wanted once: what has failed since then stays so
                again = options if batch.append else replace(options, retry_failed=False)
                change = self._submit(batch, again, devices, now.at, report)
                self._batch, taken = None, True
                changes = [(change.add, "new"), (change.cancel, "removed"), (change.requeue, "back")]
                parts = ", ".join(f"{len(jobs)} {word}" for jobs, word in changes if jobs)
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
            batch = self._feed.poll(now_s)
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
    ) -> QueueChange:
        specs = tuple(spec for spec in batch.jobs.specs if spec not in self._left_out)
        options.look_around(specs)
        if not batch.append:
            refuse_impossible(specs, options, devices)
            return submit(self._store, specs, options, at, complete=batch.complete)
        for spec, why in find_impossible(specs, options, devices):
            self._leave_out(spec, f" line {spec.line}: {why}", report)
        specs = tuple(spec for spec in specs if spec not in self._left_out)
        try:
            return submit(self._store, specs, options, at, complete=False, append=True)
        except StoreError:
            raise
        except GpuschedError:
            return self._submit_each(specs, options, at, report)

    def _submit_each(self, specs: Sequence[JobSpec], options: SubmitOptions, at: float, report: Report) -> QueueChange:
        """Submit lines of which at least one is refused, each by itself."""
        whole = QueueChange((), (), (), ())
        for spec in specs:
            try:
                change = submit(self._store, [spec], options, at, complete=False, append=True)
            except StoreError:
                raise
            except GpuschedError as error:
                self._leave_out(spec, f" {error}", report)
            else:
                whole = QueueChange(
                    whole.add + change.add, whole.keep + change.keep, whole.requeue + change.requeue, whole.cancel
                )
        return whole

    def _leave_out(self, spec: JobSpec, why: str, report: Report) -> None:
        self._left_out.add(spec)
        self.refused_lines += 1
        report("error", _left_out_text(why))


def _left_out_text(why: str) -> str:
    return f"left out, for it cannot be right (the other lines run):{why}"
