"""The head of the queue: the waiting jobs that the plan looks at, fetched only when they may have changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from gpusched.core.model import JobRow
from gpusched.core.snapshot import Limits
from gpusched.host.store import Store

SPARE = 8  # waiting jobs looked at beyond those that could start
PAGES = 4  # fetched at once: as many times what is looked at


class Head:
    """The first jobs of each shape, in the order in which they start. `forget()` has them fetched anew."""

    def __init__(self, store: Store) -> None:
        self.rows: list[JobRow] = []
        self.retry_at: float | None = None  # when the next job that backs off may start
        self._store = store
        self._known = False  # whether `rows` is still what the store would say
        self._sizes: Counter[str] = Counter()  # jobs of each shape that were fetched
        self._page = 0  # a shape of which so many came may have more

    def forget(self) -> None:
        self._known = False

    def take_out(self, gone: Set[int]) -> None:
        """These jobs no longer wait."""
        self.rows = [row for row in self.rows if row.id not in gone]

    def look(self, now: float, limits: Limits) -> list[JobRow]:
        """The jobs to plan with now."""
        wanted = self._wanted(limits)
        if not self._known or self._runs_short(wanted) or (self.retry_at is not None and now >= self.retry_at):
            self.rows, self._known = self._store.head(now, PAGES * wanted), True
            self._sizes = Counter(row.shape for row in self.rows)
            self._page = max(self._sizes.values(), default=0)
            self.retry_at = self._store.next_not_before(now)
        if len(self._sizes) <= 1:
            return self.rows[:wanted]
        left = dict.fromkeys(self._sizes, wanted)
        shown = []
        for row in self.rows:
            if left[row.shape]:
                left[row.shape] -= 1
                shown.append(row)
        return shown

    def _wanted(self, limits: Limits) -> int:
        """How many jobs of one shape are looked at: as many as could start at once, and a few more."""
        shares = any(row.mem_bytes for row in self.rows)
        return limits.max_gpus * (limits.jobs_per_gpu if shares else 1) + limits.cpu_jobs + SPARE

    def _runs_short(self, wanted: int) -> bool:
        """Whether so many jobs of a shape have started that those behind them, not fetched yet, could be next."""
        full = [shape for shape, size in self._sizes.items() if size >= self._page]
        if not full:
            return False
        left = Counter(row.shape for row in self.rows)
        return any(left[shape] < min(wanted, self._page) for shape in full)
