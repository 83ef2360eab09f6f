"""The outcomes of items: taken in, judged, and stored in groups. The only writer of the items' store."""

from __future__ import annotations

import time

from gpusched.common.text import clean
from gpusched.host.store import TransientError
from gpusched.host.store.pool.items import ItemOutcome, ItemStore, OpenItem
from gpusched.pool.coordinator.backlog import Backlog
from gpusched.pool.coordinator.verdicts import ItemVerdict, NextTry, after_death, after_failure, error_outcome
from gpusched.pool.messages import Answer, Failure
from gpusched.pool.options import PoolOptions


class Ledger:
    """The items of a pool as its coordinator sees them: what has ended, and in `backlog` what is to be given out."""

    def __init__(self, store: ItemStore, options: PoolOptions) -> None:
        self.backlog = Backlog(store.open_items)
        self.counts = store.counts()
        self._store, self._options = store, options
        self._outcomes: dict[int, ItemOutcome] = {}  # that are not stored yet
        self._trials: dict[int, OpenItem] = {}

    def find(self, item: int) -> OpenItem | None:
        """Return an item that is not in the backlog from now on, since a worker has it; None if it has an outcome."""
        row = None if item in self._outcomes else self._store.open_item(item)
        if row is not None:
            self.backlog.exclude(item)
        return row

    def settle(self, item: OpenItem, answer: Answer, *, worker: int, had_own_gpu: bool) -> None:
        """Take in the outcome of a try."""
        if answer.failure is None:
            self._outcomes[item.id] = ItemOutcome(item.id, "result", answer.result)
            self.counts = self.counts._replace(results=self.counts.results + 1)
        else:
            retries = self._options.item_retries
            verdict = after_failure(item, answer.failure, retries=retries, had_own_gpu=had_own_gpu)
            self._apply(verdict, answer.failure, worker)

    def suspect(self, item: OpenItem, why: str, *, worker: int) -> None:
        """Take note that a worker has died while it worked on the item."""
        self._apply(after_death(item), Failure("died", why), worker)

    def put_back(self, item: OpenItem) -> None:
        """Have an item given out again that its worker has not begun."""
        self.backlog.put_back(item, NextTry.ALONE if item.deaths else NextTry.ANYWHERE)

    def _apply(self, verdict: ItemVerdict, failure: Failure, worker: int) -> None:
        item = verdict.item
        if verdict.next_try is not None:
            self._trials[item.id] = item
            self.backlog.put_back(item, verdict.next_try)
        else:
            self._outcomes[item.id] = error_outcome(item, failure, worker=worker, at=time.time())
            self.counts = self.counts._replace(errors=self.counts.errors + 1)

    def commit(self) -> bool:
        """Store what has come. Return False if there is no room for it now."""
        if self._outcomes or self._trials:
            trials = [(item.failures, item.deaths, item.id) for item in self._trials.values()]
            try:
                self._store.record(list(self._outcomes.values()), trials)
            except TransientError as error:
                print(clean(str(error)), flush=True)
                return False
            self._outcomes.clear()
            self._trials.clear()
        return True

    @property
    def problem(self) -> str:
        """The reason to stop before the end; empty if there is none."""
        if self.counts.errors > self._options.error_limit(self.counts.total):
            return f"more than {self._options.max_errors} items ended in an error (--max-errors)"
        return ""
