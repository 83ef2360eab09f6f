"""Minds running jobs and failures: says what people should know, holds or stops what they asked for. Plans nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpusched.config.settings import Settings
from gpusched.core.jobs.lifecycle import CAUSE_FAILURES, JobEvent
from gpusched.core.model import MIB, Reading
from gpusched.core.plan.snapshot import Close, Plan
from gpusched.dispatcher.attempt_book import AttemptBook
from gpusched.dispatcher.open_attempt import OpenAttempt
from gpusched.dispatcher.reporter import Reporter
from gpusched.dispatcher.usage_meter import UsageMeter
from gpusched.host.store import Store, job_table

QUICK_FAILURES, QUICK_FAILURE_S = 3, 60.0  # so many of one tag, so soon after their start, hold the rest of it


class Watchdog:
    def __init__(self, store: Store, attempts: AttemptBook, meter: UsageMeter, reporter: Reporter) -> None:
        self.failed = 0  # jobs, since this dispatcher began
        self._store, self._attempts, self._meter, self._reporter = store, attempts, meter, reporter
        self._quick_failures: Counter[str] = Counter()  # by tag, in a row

    def mind_reading(self, reading: Reading, settings: Settings, now: float) -> None:
        """Fold a complete reading into what is known of the running jobs, and say what is odd about them."""
        for live in self._meter.measure({s.uuid: s for s in reading.samples if not s.error}):
            what = f"uses {live.strange_device}, which it was not given: it must choose its own GPU"
            self._warn(live, what)
        for live, uuid, used in self._meter.over_budget():
            index = next(device.index for device in live.row.devices if device.uuid == uuid)
            budget = live.job.mem_bytes // MIB
            self._warn(live, f"uses {used // MIB} MiB on GPU {index} of a budget of {budget}: counted at its real use")
        if settings.idle_timeout is not None:
            self._mind_idle(now, settings.idle_timeout, stop=settings.idle_action == "stop")

    def _mind_idle(self, now: float, timeout_s: float, *, stop: bool) -> None:
        for live in self._meter.idle(now, timeout_s):
            what = f"has shown no process on its GPUs for {timeout_s:g} s (--idle-timeout)"
            self._warn(live, f"{what}: {'stopping it' if stop else 'see its log'}")
            if stop:
                live.stop_cause = "idle"
                self._attempts.stop(live)

    def mind_leftovers(self) -> None:
        """Say of jobs whose command has ended what keeps them running."""
        for live in self._attempts.live.values():
            left = live.fields.get("leftovers", "")
            if left and not live.told_leftovers:
                live.told_leftovers = True
                kept = "its GPU is kept for them" if live.devices else "they still count"
                what = f"its command has ended, but not what it left running: {left}"
                self._reporter.tell("warning", f"job {live.job.id}: {what}; {kept} (--leftovers stop ends them)")

    def mind_failures(self, plan: Plan) -> bool:
        """Count failures; hold what is left of a tag whose jobs fail at once. True if any job was held."""
        held = False
        for close in _closes(plan):
            event = close.verdict.event
            self.failed += event is JobEvent.FAILED
            quick = event is JobEvent.FAILED and close.attempt.lasted_s < QUICK_FAILURE_S
            for tag in close.attempt.tags:
                if quick:
                    held |= self._count_quick_failure(tag)
                elif event in (JobEvent.SUCCEEDED, JobEvent.FAILED):
                    del self._quick_failures[tag]
        return held

    def _count_quick_failure(self, tag: str) -> bool:
        self._quick_failures[tag] += 1
        if self._quick_failures[tag] < QUICK_FAILURES:
            return False
        del self._quick_failures[tag]  # those that are released get as many failures again
        n = job_table.hold_tag(self._store, tag, CAUSE_FAILURES)
        if n:
            what = f"{QUICK_FAILURES} jobs of the tag {tag} failed within a minute of their start"
            way_on = f"{n} more are held; `gpusched release --tag {tag}` lets them go"
            self._reporter.tell("queue", f"{what}: {way_on}")
        return n > 0

    def _warn(self, live: OpenAttempt, what: str) -> None:
        self._reporter.tell("warning", f"job {live.job.id} {what}", live.job.id)


def _closes(plan: Plan) -> Iterable[Close]:
    return (action for action in plan.actions if isinstance(action, Close))
