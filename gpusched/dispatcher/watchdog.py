"""Watches running jobs and failures: warns people, holds or stops what they asked for. Plans nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace

from gpusched.common.text import count, ranges
from gpusched.config.settings import Settings
from gpusched.core.documents import job_title, shown_line
from gpusched.core.jobs.lifecycle import CAUSE_FAILURES, MISPLACED, JobEvent
from gpusched.core.jobs.outcome import describe
from gpusched.core.jobs.quick_failures import QuickFailures, program
from gpusched.core.model import MIB, JobState, Outcome, Reading
from gpusched.core.plan import quarantine
from gpusched.core.plan.snapshot import Close, Plan
from gpusched.dispatcher.attempts.attempt_book import AttemptBook
from gpusched.dispatcher.attempts.open_attempt import OpenAttempt
from gpusched.dispatcher.attempts.usage_meter import UsageMeter
from gpusched.dispatcher.device_book import DeviceBook
from gpusched.dispatcher.reporter import Reporter
from gpusched.dispatcher.timers import Moment
from gpusched.host.store import Store, TransientError, job_table


class Watchdog:
    def __init__(self, store: Store, attempts: AttemptBook, reporter: Reporter) -> None:
        self.failed = 0  # jobs, since this dispatcher began
        self.meter = UsageMeter(store, attempts)
        self._store, self._attempts, self._reporter = store, attempts, reporter
        self._option = f"-q {shlex.quote(reporter.queue_name)}"  # by which a verb means this queue
        self._quick_failures = QuickFailures()
        self._records: quarantine.Records = {}
        self._quarantined: set[str] = set()  # as reported

    def check_reading(self, reading: Reading, devices: DeviceBook, settings: Settings, now: Moment) -> None:
        """Fold a complete reading into what is known of the running jobs, and warn of what is odd about them."""
        samples = {sample.uuid: sample for sample in reading.samples if not sample.error}
        self._records = quarantine.note_samples(self._records, samples.values(), now.monotonic_s)
        boards = {device.uuid for device in reading.devices if device.mig_parent}  # they list those of their instances
        self.meter.measure({uuid: sample for uuid, sample in samples.items() if uuid not in boards}, now)
        self.meter.siblings.note_poll(settings.max_checks)
        for attempt in self._attempts:
            if attempt.use.unassigned_device and attempt.is_first("unassigned"):
                self._check_place(attempt, is_ours=attempt.has_indices and devices.changed_s >= attempt.opened_s)
            for use in attempt.row.devices:
                used, budget = attempt.use.used_bytes.get(use.uuid, 0), attempt.job.budget_bytes
                if 0 < budget < used and attempt.is_first("over budget"):
                    text = f"uses {used // MIB} MiB on GPU {use.index} of a budget of {budget // MIB}"
                    self._warn(attempt, f"{text}: counted at its real use")
            if settings.idle_timeout is not None:
                self._check_idle(attempt, now, settings.idle_timeout, stop=settings.idle_action == "stop")

    def _check_place(self, attempt: OpenAttempt, *, is_ours: bool) -> None:
        """Warn of an attempt that uses a device which is not its own; stop it if the mistake may be ours."""
        device = attempt.use.unassigned_device
        if not is_ours:
            return self._warn(attempt, f"uses {device}, which it was not given: it must choose its own GPU")
        self._warn(attempt, f"is on {device}, since CUDA has counted the GPUs anew: stopped and queued again")
        attempt.stop_cause = MISPLACED
        self._attempts.stop(attempt)

    def check_for_lost_devices(self, now: Moment, devices: DeviceBook) -> None:
        """Blame a device that was lost meanwhile for the failures on it, as soon as the devices were read since."""
        for attempt in self._attempts:
            if attempt.outcome_due_s is None or attempt.outcome is None:
                continue
            if any(devices.was_lost(uuid, attempt.opened_s) for uuid in attempt.devices):
                attempt.outcome = replace(attempt.outcome, cause="gpu_lost")
            elif now.monotonic_s < attempt.outcome_due_s and not all(
                devices.is_read_since_settling(uuid) for uuid in attempt.devices
            ):
                continue
            attempt.outcome_due_s = None

    def _check_idle(self, attempt: OpenAttempt, now: Moment, timeout_s: float, *, stop: bool) -> None:
        """Warn of an attempt whose devices have shown no process of it for so long, or stop it."""
        is_idle = attempt.devices and not attempt.has_ended and now.monotonic_s - attempt.use.seen_s >= timeout_s
        if is_idle and attempt.is_first("idle"):
            idle = f"has shown no process on its GPUs for {timeout_s:g} s (--idle-timeout)"
            self._warn(attempt, f"{idle}: {'stopping it' if stop else 'see its log'}")
            if stop:
                attempt.stop_cause = "idle"
                self._attempts.stop(attempt)

    def check_ends(self, ended: Iterable[OpenAttempt]) -> None:
        """Learn from what has just ended; warn of jobs whose command has left processes that keep them running."""
        self.meter.siblings.note_ends(ended)
        for attempt in self._attempts:
            left = attempt.life.fields.get("leftovers", "")
            if left and attempt.is_first("leftovers"):
                kept = "its GPU is kept for them" if attempt.devices else "they still count"
                text = f"its command has ended, but not what it left running: {left}"
                hint = "--leftovers stop ends them"
                self._reporter.report("warning", f"{job_title(attempt.job)}: {text}; {kept} ({hint})")

    def review_devices(self, devices: DeviceBook, now: Moment) -> None:
        """Bar the devices on which no job should start now; report which come into quarantine or out of it."""
        running = [(a.devices, now.monotonic_s - a.opened_s) for a in self._attempts if a.devices and not a.has_ended]
        before, self._records = self._records, quarantine.review(self._records, running, now.monotonic_s)
        quarantined = quarantine.quarantined(self._records, now.monotonic_s)
        barred = quarantine.suspected(self._records, running, now.monotonic_s) | quarantined
        on_trial = quarantine.on_trial(self._records)
        for uuid, entry in devices.entries.items():
            entry.barred, entry.on_trial = barred.get(uuid, ""), uuid in on_trial
            if uuid in quarantined and uuid not in self._quarantined:
                minutes = (self._records[uuid].until_s - now.monotonic_s) / 60
                text = f"{entry.title} is {quarantined[uuid]}; tried again with one job in {minutes:.0f} min"
                self._reporter.report("device", text + self._requeue_hint(before[uuid].failed))
            elif uuid in self._quarantined and uuid not in quarantined:
                self._reporter.report("device", f"{entry.title} is tried again with one job")
        self._quarantined = set(quarantined)

    def _requeue_hint(self, jobs: Iterable[int]) -> str:
        there = job_table.standings(self._store, list(jobs))  # without those that were cleaned away
        failed = [str(job.id) for job in there if job.state is JobState.FAILED]
        return f"; `gpusched requeue {' '.join(failed)} {self._option}` gives its jobs another try" if failed else ""

    def count_failures(self, plan: Plan, now: Moment, quick_max: int) -> bool:
        """Count failures; after `quick_max` quick ones in a row hold the jobs of the same program that wait.

        Return True if any job was held.
        """
        held = False
        for close in (action for action in plan.actions if isinstance(action, Close)):
            event = close.verdict.event
            self._records = quarantine.note_end(self._records, close.attempt, now.monotonic_s)
            self.failed += event is JobEvent.FAILED
            job, outcome = close.attempt.job, close.attempt.outcome
            if event is JobEvent.SUCCEEDED:
                self._quick_failures.forget(job.command)
            elif event is JobEvent.FAILED and outcome is not None:
                doomed = self._quick_failures.note_failure(job.command, outcome, close.attempt.lasted_s, quick_max)
                held |= doomed and self._hold_program(job.command, outcome, quick_max)
        return held

    def _hold_program(self, command: bytes, outcome: Outcome, failures: int) -> bool:
        """Hold the waiting jobs of the program of a command; return True if there was any."""
        name = program(command)
        try:
            ids = job_table.hold_where(self._store, lambda other: program(other) == name, CAUSE_FAILURES)
        except TransientError:  # the next failure tries again
            return False
        self._quick_failures.forget(command)  # those that are released get as many failures again
        if ids:
            text = f"{failures} jobs of {shown_line(name)} in a row failed within a minute of their start"
            words = f"{ranges(ids).replace(', ', ' ')} {self._option}"
            hint = f"`gpusched release {words}` lets them go (--max-quick-fails)"
            text += f" ({describe(outcome)}): {count(len(ids), 'more job')} held; {hint}"
            self._reporter.report("queue", text, notice="held")
        return bool(ids)

    def _warn(self, attempt: OpenAttempt, text: str) -> None:
        self._reporter.report("warning", f"{job_title(attempt.job)} {text}", attempt.job.id)
