"""The head of the queue: as many waiting jobs as it takes to plan like with all of them, fetched only when needed.

What cannot be had by the first job of a shape cannot be had by those behind it. So a plan of the first few of each
shape is the plan of all, unless it gives devices to each that it was shown of one: then it is shown more of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from gpusched.core.model import Attempt, JobRow
from gpusched.core.plan import observe
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Plan, Snapshot
from gpusched.dispatcher.timers import Moment
from gpusched.host.queue import interactive
from gpusched.host.store import Store, attempt_table, startable_jobs
from gpusched.host.store.startable_jobs import SHAPES_MAX

SHOWN = 8  # jobs of a shape that a plan is shown at first
GROWTH = 4  # so many times as many are shown, or fetched, when these were too few
PAGE_MIN, PAGE_MAX, PAGE_SUM = 2, 32, 64  # jobs fetched at first: of a shape, and of all shapes about
IN_ORDER = 1000  # jobs looked at where there are very many shapes


def _order(job: JobRow) -> tuple[int, int, int]:
    """Return the key by which waiting jobs sort in the order in which they start."""
    return -job.prio, job.position, job.id


class QueueHead:
    """`forget()` has the jobs fetched anew before the next plan."""

    def __init__(self, store: Store) -> None:
        self.rows: dict[int, JobRow] = {}  # what was fetched and still waits, by id
        self.retry_at: float | None = None  # when the next job that backs off may start
        self._store = store
        self._is_current = False  # `rows` is still what the store would say
        self._shapes: dict[str, list[JobRow]] = {}
        self._more: set[str] = set()  # shapes of which there may be more jobs than were fetched
        self._people: list[Attempt] = []  # interactive attempts, which count, and which nobody stops
        self._passed_since: dict[int, float] = {}  # jobs that others have passed, in monotonic seconds

    def forget(self) -> None:
        self._is_current = False

    def close_lost(self) -> None:
        """Close the interactive attempts of which no process is left."""
        if any(not interactive.is_alive(self._store, attempt.job.id) for attempt in self._people):
            interactive.close_lost(self._store)
            self.forget()

    def take_out(self, gone: Set[int]) -> None:
        """Drop these jobs, which no longer wait."""
        rows = [self.rows.pop(job_id) for job_id in gone if job_id in self.rows]
        for shape in {row.shape for row in rows}:
            self._shapes[shape] = [each for each in self._shapes[shape] if each.id not in gone]
        for job_id in gone:
            self._passed_since.pop(job_id, None)

    def note_passed(self, jobs: Iterable[int], now: Moment) -> None:
        """Remember since when these jobs are passed by others."""
        for job_id in jobs:
            self._passed_since.setdefault(job_id, now.monotonic_s)

    def waited_since(self, now: Moment) -> dict[int, float]:
        """Return since when jobs are passed by others, in wall time as the clock goes now."""
        return {job_id: now.at - (now.monotonic_s - since_s) for job_id, since_s in self._passed_since.items()}

    def deadline_s(self, now: Moment) -> float | None:
        """Return when the next job that backs off may start, in monotonic seconds."""
        return None if self.retry_at is None else now.monotonic_s + (self.retry_at - now.at)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return the plan of `snapshot` with the jobs that wait."""
        now = snapshot.now
        if not self._is_current or (self.retry_at is not None and now >= self.retry_at):
            self._fetch(now)
        shown = dict.fromkeys(self._shapes, SHOWN)
        attempts = (*snapshot.attempts, *self._people)
        while True:
            plan = make_plan(replace(snapshot, waiting=tuple(self._first(shown)), attempts=attempts))
            short = self._short(plan, shown)
            if not short:
                return plan
            for shape in short:
                shown[shape] *= GROWTH
                if shape in self._more and shown[shape] > len(self._shapes[shape]):
                    self._add(shape, max(PAGE_MAX, shown[shape]), now)

    def _first(self, shown: dict[str, int]) -> list[JobRow]:
        """Return so many jobs of each shape, in the order in which they start."""
        first = [job for shape, waiting in self._shapes.items() for job in waiting[: shown[shape]]]
        return sorted(first, key=_order)

    def _short(self, plan: Plan, shown: dict[str, int]) -> list[str]:
        """Return the shapes of which each shown job gets devices, while there are more."""
        placed = set(observe.starts(plan))
        placed |= {job_id for job_id, reason in plan.reasons.items() if reason.kind == "look"}
        return [
            shape
            for shape, waiting in self._shapes.items()
            if (shape in self._more or len(waiting) > shown[shape])
            and all(each.id in placed for each in waiting[: shown[shape]])
        ]

    def _fetch(self, now: float) -> None:
        shapes = startable_jobs.shapes(self._store)
        self._is_current, self.rows, self._shapes, self._more = True, {}, {}, set()
        self.retry_at = startable_jobs.next_not_before(self._store, now)
        people = (observe.open_attempt(job, row) for job, row in attempt_table.interactive(self._store))
        self._people = [replace(attempt, stop_sent=True) for attempt in people]
        if len(shapes) > SHAPES_MAX:
            for row in startable_jobs.first(self._store, now, IN_ORDER):
                self._shapes.setdefault(row.shape, []).append(row)
                self.rows[row.id] = row
            return
        page = max(PAGE_MIN, min(PAGE_MAX, PAGE_SUM // max(1, len(shapes))))
        for shape in shapes:
            self._add(shape, page, now)

    def _add(self, shape: str, limit: int, now: float) -> None:
        rows = startable_jobs.first(self._store, now, limit, shape)
        self._shapes[shape] = rows
        self.rows |= {row.id: row for row in rows}
        (self._more.add if len(rows) == limit else self._more.discard)(shape)
