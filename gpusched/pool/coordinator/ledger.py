"""The outcomes of items: taken in, judged, and stored in groups. The only writer of the items' store."""

from __future__ import annotations

import time

from gpusched.common.text import clean
from gpusched.host.store import TransientError
from gpusched.host.store.pool.items import ItemOutcome, ItemStore, OpenItem
from gpusched.pool.coordinator.backlog import Backlog
from gpusched.pool.coordinator.parts import Parts
from gpusched.pool.coordinator.verdicts import ItemVerdict, NextTry, after_death, after_failure, error_outcome
from gpusched.pool.messages import Failure
from gpusched.pool.options import PoolOptions


class Ledger:
    """The items of a pool as its coordinator sees them: what has ended, and in `backlog` what is to be given out."""

    def __init__(self, store: ItemStore, options: PoolOptions) -> None:
        self.parts = Parts(store, options)
        self.backlog = Backlog(store.open_items)
        self.total, self.results, self.errors = store.counts()
        self.out_of_memory = 0  # tries for which there was no memory, and batches that were made smaller
        self._store, self._options = store, options
        self._done_before = self.results + self.errors
        self._outcomes: dict[int, ItemOutcome] = {}  # that are not stored yet
        self._trials: dict[int, OpenItem] = {}
        self._begun_s, self._newest_s = 0.0, 0.0  # the first item was given out, the newest outcome came

    def note_begin(self) -> None:
        """Take note that items are given out."""
        self._begun_s = self._begun_s or time.monotonic()

    @property
    def facts(self) -> dict[str, float]:
        """The work of this run: items with an outcome, and the time from the first that was given out to the last."""
        done = self.results + self.errors - self._done_before
        return {"done": done, "work_s": max(0.0, self._newest_s - self._begun_s)}

    def find(self, item: int) -> OpenItem | None:
        """Return an item that is not in the backlog from now on, since a worker has it; None if it has an outcome."""
        row = None if item in self._outcomes else self._store.open_item(item)
        if row is not None:
            self.backlog.exclude(item)
        return row

    def note_result(self, item: int, result: bytes) -> None:
        """Take in the result of an item."""
        self._newest_s = time.monotonic()
        self._outcomes[item] = ItemOutcome(item, "result", result)
        self.results += 1

    def note_failure(self, item: OpenItem, failure: Failure, *, worker: int, had_own_gpu: bool) -> None:
        """Take in that a try has brought no result."""
        self._newest_s = time.monotonic()
        self.out_of_memory += failure.kind == "oom"
        verdict = after_failure(item, failure, retries=self._options.item_retries, had_own_gpu=had_own_gpu)
        self._apply(verdict, failure, worker)

    def suspect(self, item: OpenItem, why: str, *, worker: int) -> None:
        """Take note that a worker has died while it worked on the item."""
        self._apply(after_death(item), Failure("died", why), worker)

    def put_back(self, item: OpenItem, *, behind_others: bool) -> None:
        """Have an item given out again that its worker has not begun, or is not to blame for."""
        if behind_others and not item.deaths:
            self.backlog.postpone(item)
        else:
            self.backlog.put_back(item, NextTry.ALONE if item.deaths else NextTry.ANYWHERE)

    def _apply(self, verdict: ItemVerdict, failure: Failure, worker: int) -> None:
        item = verdict.item
        if verdict.next_try is not None:
            self._trials[item.id] = item
            self.backlog.put_back(item, verdict.next_try)
        else:
            self._outcomes[item.id] = error_outcome(item, failure, worker=worker, at=time.time())
            self.errors += 1

    def commit(self) -> bool:
        """Store what has come. Return False if there is no room for it now."""
        if self._outcomes or self._trials:
            trials = [(item.failures, item.deaths, item.id) for item in self._trials.values()]
            try:
                self._store.record(list(self._outcomes.values()), trials)
            except TransientError as error:
                print(clean(str(error)), flush=True)
                return False
            self.parts.add(sum(each.kind == "result" for each in self._outcomes.values()))
            self._outcomes.clear()
            self._trials.clear()
        return True

    @property
    def left(self) -> int:
        """The number of items without an outcome."""
        return self.total - self.results - self.errors

    @property
    def problem(self) -> str:
        """The reason to stop before the end; empty if there is none."""
        if self.errors > self._options.error_limit(self.total):
            return f"more than {self._options.max_errors} items ended in an error (--max-errors)"
        return ""
