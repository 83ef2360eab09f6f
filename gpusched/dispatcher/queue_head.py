"""The head of the queue: as many waiting jobs as it takes to plan like with all of them, fetched only when needed.

What cannot be had by the first job of a shape cannot be had by those behind it. So a plan of the first few of each
shape is the plan of all, unless it gives devices to each that it was shown of one: then it is shown more of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import NamedTuple

from gpusched.core.model import Job, JobRow
from gpusched.core.plan.observe import starts
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Plan, Snapshot
from gpusched.host.store import Store, startable_jobs
from gpusched.host.store.startable_jobs import SHAPES_MAX

SHOWN = 4  # jobs of a shape that a plan is shown at first
GROWTH = 4  # so many times as many are shown, or fetched, when these were too few
PAGE_MIN, PAGE_MAX, PAGE_SUM = 2, 32, 64  # jobs fetched at first: of a shape, and of all shapes about
IN_ORDER = 1000  # jobs looked at where there are very many shapes


class _Waiting(NamedTuple):
    """A waiting job, so that they sort in the order in which they start."""

    prio: int  # negated
    position: int
    id: int
    job: Job


class QueueHead:
    """`forget()` has the jobs fetched anew before the next plan."""

    def __init__(self, store: Store) -> None:
        self.rows: dict[int, JobRow] = {}  # what was fetched and still waits, by id
        self.retry_at: float | None = None  # when the next job that backs off may start
        self._store = store
        self._known = False  # whether `rows` is still what the store would say
        self._shapes: dict[str, list[_Waiting]] = {}
        self._more: set[str] = set()  # shapes of which there may be more jobs than were fetched

    def forget(self) -> None:
        self._known = False

    def take_out(self, gone: Set[int]) -> None:
        """These jobs no longer wait."""
        for job_id in gone:
            row = self.rows.pop(job_id, None)
            if row is not None:
                waiting = self._shapes[row.shape]
                waiting[:] = (each for each in waiting if each.id != job_id)

    def plan(self, snapshot: Snapshot) -> Plan:
        """The plan of `snapshot` with the jobs that wait."""
        now = snapshot.now
        if not self._known or (self.retry_at is not None and now >= self.retry_at):
            self._fetch(now)
        shown = dict.fromkeys(self._shapes, SHOWN)
        while True:
            plan = make_plan(replace(snapshot, waiting=tuple(self._first(shown))))
            short = self._short(plan, shown)
            if not short:
                return plan
            for shape in short:
                shown[shape] *= GROWTH
                if shape in self._more and shown[shape] > len(self._shapes[shape]):
                    self._add(shape, max(PAGE_MAX, shown[shape]), now)

    def _first(self, shown: dict[str, int]) -> Iterable[Job]:
        """So many of each shape, in the order in which they start."""
        parts = [waiting[: shown[shape]] for shape, waiting in self._shapes.items()]
        if len(parts) == 1:
            return (each.job for each in parts[0])
        return (each.job for each in sorted(each for part in parts for each in part))

    def _short(self, plan: Plan, shown: dict[str, int]) -> list[str]:
        """Shapes of which each shown job gets devices, while there are more."""
        placed = set(starts(plan))
        placed |= {job_id for job_id, reason in plan.reasons.items() if reason.kind == "look"}
        return [
            shape
            for shape, waiting in self._shapes.items()
            if (shape in self._more or len(waiting) > shown[shape])
            and all(each.id in placed for each in waiting[: shown[shape]])
        ]

    def _fetch(self, now: float) -> None:
        shapes = startable_jobs.shapes(self._store)
        self._known, self.rows, self._shapes, self._more = True, {}, {}, set()
        self.retry_at = startable_jobs.next_not_before(self._store, now)
        if len(shapes) > SHAPES_MAX:
            for row in startable_jobs.first(self._store, now, IN_ORDER):
                self._shapes.setdefault(row.shape, []).append(self._take(row))
            return
        page = max(PAGE_MIN, min(PAGE_MAX, PAGE_SUM // max(1, len(shapes))))
        for shape in shapes:
            self._add(shape, page, now)

    def _add(self, shape: str, limit: int, now: float) -> None:
        found = startable_jobs.first(self._store, now, limit, shape)
        self._shapes[shape] = [self._take(row) for row in found]
        (self._more.add if len(found) == limit else self._more.discard)(shape)

    def _take(self, row: JobRow) -> _Waiting:
        self.rows[row.id] = row
        return _Waiting(-row.prio, row.position, row.id, row.waiting)
