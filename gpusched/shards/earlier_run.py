"""What a queue holds of an earlier start of `gpusched shard`, and whether another start fits to it. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpusched.common.errors import GpuschedError
from gpusched.host.store import attempt_table, job_table, meta_table, submission
from gpusched.operations import queues

if TYPE_CHECKING:
    from gpusched.core.jobs.reconcile import StoredJob
    from gpusched.host.queue.queue_dirs import QueueDir
    from gpusched.host.store import Store
    from gpusched.shards.plan import Shard, ShardPlan

SPLIT = "split"  # what the queue's database says of its shards, whatever becomes of the plan's file
STATES = {"succeeded": "done", "running": "running"}  # of shards whose work another split would do again


class EarlierRun:
    """What the queue holds of an earlier start: its plan, its shards, its merges."""

    def __init__(self, place: QueueDir, owner: bytes) -> None:
        self.plan: ShardPlan | None = None
        self.split: str | None = None
        self.states: dict[str, str] = {}  # of the shards, by the names of their jobs
        self._ended: list[float] = []
        self._held: list[StoredJob] = []
        self._merged_at: dict[int, float] = {}  # job -> when it began last
        if not place.exists():
            return
        store = queues.open_store(place)
        try:
            if meta_table.source(store) in (None, owner):  # a queue of something else is refused where it is taken
                self._read(place, store)
        finally:
            store.close()

    def _read(self, place: QueueDir, store: Store) -> None:
        from gpusched.core.jobs.reconcile import CAUSE_REMOVED
        from gpusched.host.queue.shard_files import PLAN, read_plan
        from gpusched.shards.plan import MERGE, TAG, from_document

        found = read_plan(place.path)
        try:
            self.plan = None if found is None else from_document(found)
        except ValueError as error:
            hint = "it is left as it is: move it away to make the plan anew, or use another --log-dir"
            raise GpuschedError(str(error), where=f"{place.path}/{PLAN}", hint=hint) from None
        for job in job_table.jobs(store):
            if TAG in job.tags and job.listed and job.cause != CAUSE_REMOVED:
                self.states[job.name] = job.state.value
                self._ended.append(job.ended_at or 0.0)
            elif job.name == MERGE:
                self._merged_at[job.id] = max(
                    (each.started_at for each in attempt_table.attempts(store, job.id)), default=0.0
                )
        self._held = submission.stored_jobs(store)
        self.split = meta_table.read(store, SPLIT) or (self.plan.split_id if self.plan is not None else None)

    def refuse_another(self, plan: ShardPlan, place: QueueDir) -> None:
        """Raise GpuschedError for a split other than the one whose shards are done, or run: it would do items twice."""
        from gpusched.views.words import count

        before = self.plan
        if before is None:
            self._refuse_unknown(plan, place)
            return
        of = {state: [s for s in before.shards if self.states.get(s.job_name) == state] for state in STATES}
        begun = [s for state in STATES for s in of[state]]
        moved = (before.asked or {}).get("cwd", os.getcwd()) != os.getcwd()
        if not begun or (before.ways == plan.ways and not moved):
            return
        rest = [s for s in before.shards if s not in begun]
        missing = ", ".join(before.span(s) for s in rest[:6]) + (" …" if len(rest) > 6 else "")
        lines = [
            f"{count(len(of[state]), 'shard')} of {len(before.shards)} {word}: {_names(of[state])}"
            for state, word in STATES.items()
            if of[state]
        ]
        lines.append(f"missing: items {missing}" if rest else "no items are missing")
        name = queues.queue_name(place)
        if before.ways == plan.ways:
            what, way = f"the shards of this queue run in {(before.asked or {})['cwd']}", "start it there to go on"
        else:
            what = _difference(before, plan)
            way = f"the same options as before do what is missing, which `gpusched status -q {name}` shows"
            if before.total == plan.total and before.shuffle_seed == plan.shuffle_seed:
                way = f"--num-shards {len(before.shards)} and the other options as before do what is missing"
        way = f"{way}; --log-dir NEW begins" if rest else "--log-dir NEW begins"
        raise GpuschedError("\n  ".join([what, *lines]), where=place.path, hint=f"{way} anew, beside it")

    def _refuse_unknown(self, plan: ShardPlan, place: QueueDir) -> None:
        """The plan's file is gone: what the database says of the split has to do."""
        begun = [name for name, state in self.states.items() if state in STATES]
        if begun and self.split != plan.split_id:
            what = f"its plan is gone, {len(begun)} of its shards are done or run, and this start cuts in another way"
            hint = "the very same options as before go on; --log-dir NEW begins anew, beside it"
            raise GpuschedError(what, where=place.path, hint=hint)

    def merges(self, plan: ShardPlan, name: bytes, *, retry_failed: bool) -> int:
        """Which time it is that this merge is made: once more, if what it has made is no longer what there is."""
        held = [job for job in self._held if job.identity == name]
        if not held:
            return 1
        last = max(held, key=lambda job: job.occurrence)
        runs = {"queued", "running", "held", *(["failed"] if retry_failed else [])}
        comes = any(self.states.get(s.job_name, "queued") in runs for s in plan.shards)
        later = [*self._ended, *(at for job_id, at in self._merged_at.items() if job_id != last.id)]
        output = plan.merge.output if plan.merge is not None else None
        lost = last.state.value == "succeeded" and output is not None and not os.path.exists(output)
        stale = comes or lost or max(later, default=0.0) > self._merged_at.get(last.id, 0.0)
        over = {"succeeded"} if retry_failed else {"succeeded", "failed"}  # a failed one is tried again as it is
        return int(last.occurrence) + (last.state.value in over and stale)


def _names(shards: Sequence[Shard]) -> str:
    names = [s.suffix for s in shards]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _difference(before: ShardPlan, plan: ShardPlan) -> str:
    """Why the work of one plan is not that of the other."""
    if _cut(before) != _cut(plan):
        return f"{_cut(before)}, and this start asks for {_cut(plan)}"
    if (before.asked or {}).get("digest") != (plan.asked or {}).get("digest"):
        return f"the items in {plan.items or 'the range'} are others than when its shards were made"
    for what in ("suffix", "seed"):
        was, now = getattr(before.shards[0], what), getattr(plan.shards[0], what)
        if was != now:
            return f"its first shard has the {what} {was}, and this start gives it {now}"
    return f"{_cut(before)}, and this start asks for as many, cut elsewhere"


def _cut(plan: ShardPlan) -> str:
    from gpusched.views.words import count

    way = {"strided": ", strided", "weighted": ", by weight"}.get(plan.strategy, "")
    order = "" if plan.shuffle_seed is None else f", shuffled by {plan.shuffle_seed}"
    return f"{count(len(plan.shards), 'shard')} of {count(plan.total, 'item')}{way}{order}"
