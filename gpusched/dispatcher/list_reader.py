"""What a feed brings -> the queue: a list whole or not at all, a stream line by line. Starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpusched.common.errors import GpuschedError
from gpusched.core.jobs.reconcile import QueueChange
from gpusched.core.model import Device, JobSpec
from gpusched.dispatcher.feed import Batch, Feed
from gpusched.host.store import Store, StoreError
from gpusched.lists.findings import render_findings
from gpusched.lists.submit import SubmitOptions, find_impossible, refuse_impossible, submit

Tell = Callable[[str, str], None]  # kind of the event, text


class ListReader:
    """`refused_lines` counts the lines of a stream that were left out."""

    def __init__(self, feed: Feed, store: Store) -> None:
        self.refused_lines = 0
        self._feed, self._store = feed, store
        self._batch: Batch | None = None  # read, and not stored yet
        self._left_out: set[JobSpec] = set()  # of the stream

    def waits(self) -> bool:
        """Whether something was read that is not stored yet."""
        return self._batch is not None

    def take(self, rules: SubmitOptions, devices: Sequence[Device], now: float, tell: Tell) -> bool:
        """Submit what has come; whether there was anything. `devices` are the allowed ones.

        Raises DiskFull or OSError when there is no room for it; it is then taken at the next call.
        """
        taken = False
        try:
            while (batch := self._next(now, tell)) is not None:
                # asked for once: what has failed since then stays so
                its_rules = rules if batch.append else replace(rules, retry_failed=False)
                change = self._submit(batch, its_rules, devices, now, tell)
                self._batch, taken = None, True
                told = [(change.add, "new"), (change.cancel, "removed"), (change.requeue, "back")]
                parts = ", ".join(f"{len(jobs)} {word}" for jobs, word in told if jobs)
                if parts:
                    tell("queue", f"the list was read: {parts}")
        except StoreError:
            raise
        except GpuschedError as error:
            self._batch = None
            tell("warning", f"the list was changed but is not taken: {error}")
        return taken

    def _next(self, now: float, tell: Tell) -> Batch | None:
        if self._batch is not None:
            return self._batch
        try:
            batch = self._feed.poll(now)
        except OSError as error:
            tell("warning", f"the list cannot be read: {error}")
            return None
        if batch is not None and batch.jobs.errors:
            self.refused_lines += len(batch.jobs.errors)
            tell("error", _left_out_text("\n" + render_findings(batch.jobs.errors, "standard input")))
        self._batch = batch
        return batch

    def _submit(
        self, batch: Batch, rules: SubmitOptions, devices: Sequence[Device], now: float, tell: Tell
    ) -> QueueChange:
        specs = tuple(spec for spec in batch.jobs.specs if spec not in self._left_out)
        rules.look_around(specs)
        if not batch.append:
            refuse_impossible(specs, rules, devices)
            return submit(self._store, specs, rules, now, complete=batch.complete)
        for spec, why in find_impossible(specs, rules, devices):
            self._leave_out(spec, f" line {spec.line}: {why}", tell)
        specs = tuple(spec for spec in specs if spec not in self._left_out)
        try:
            return submit(self._store, specs, rules, now, complete=False, append=True)
        except StoreError:
            raise
        except GpuschedError:
            return self._submit_each(specs, rules, now, tell)

    def _submit_each(self, specs: Sequence[JobSpec], rules: SubmitOptions, now: float, tell: Tell) -> QueueChange:
        """Lines of which at least one is refused, each by itself."""
        whole = QueueChange((), (), (), ())
        for spec in specs:
            try:
                found = submit(self._store, [spec], rules, now, complete=False, append=True)
            except StoreError:
                raise
            except GpuschedError as error:
                self._leave_out(spec, f" {error}", tell)
            else:
                whole = QueueChange(
                    whole.add + found.add, whole.keep + found.keep, whole.requeue + found.requeue, whole.cancel
                )
        return whole

    def _leave_out(self, spec: JobSpec, why: str, tell: Tell) -> None:
        self._left_out.add(spec)
        self.refused_lines += 1
        tell("error", _left_out_text(why))


def _left_out_text(why: str) -> str:
    return f"left out, for it cannot be right (the other lines run):{why}"
