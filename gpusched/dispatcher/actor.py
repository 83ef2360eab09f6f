"""Does what a plan says, in the order that loses nothing and runs nothing twice. Decides nothing.

A start is: claims and life lock, one more look, one transaction that re-checks the job, the hand-over to a shepherd,
and only then the life lock is let go here. Closes share the transaction with the starts of the same tick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from gpusched.common.text import clean
from gpusched.core.documents import job_title, shown_line
from gpusched.core.jobs import environment
from gpusched.core.jobs.failure import without_repetition
from gpusched.core.jobs.lifecycle import JobEvent, steer
from gpusched.core.jobs.outcome import describe
from gpusched.core.model import MIB, AttemptRow, DeviceUse, JobRow, JobState
from gpusched.core.plan import selection
from gpusched.core.plan.snapshot import Claim, Close, Gather, Look, Plan, Release, Start, Stop
from gpusched.dispatcher.attempts.attempt_book import AttemptBook, log_paths
from gpusched.dispatcher.attempts.open_attempt import OpenAttempt
from gpusched.dispatcher.device_book import DeviceBook
from gpusched.dispatcher.options import QueueOptions
from gpusched.dispatcher.reporter import Reporter
from gpusched.dispatcher.timers import Clock, Moment
from gpusched.host.store import Store, attempt_table, environment_table, job_table, transitions
from gpusched.host.store.attempt_table import AttemptEnd, NextAttempt

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Effects:
    """Changes of the queue by one plan."""

    gone: frozenset[int] = frozenset()  # jobs that no longer wait
    has_new_jobs: bool = False  # a job waits again
    has_freed_jobs: bool = False  # a job may have become free to start by those that it depends on
    has_refusals: bool = False  # a claim was refused: its job may get another device


NO_EFFECTS = Effects()


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """An attempt whose life lock is held here and that is not booked yet."""

    attempt: OpenAttempt
    life: int


class Actor:
    """`step` is called with the name of each step."""

    def __init__(
        self,
        store: Store,
        devices: DeviceBook,
        attempts: AttemptBook,
        *,
        reporter: Reporter,
        options: QueueOptions,
        clock: Clock,
        step: Callable[[str], None],
    ) -> None:
        self.step = step
        self._store, self._devices, self._attempts = store, devices, attempts
        self._reporter, self._options, self._clock = reporter, options, clock
        self._says_uuids = False  # people know that jobs get UUIDs

    def act(self, plan: Plan, rows: Mapping[int, JobRow], now: Moment) -> Effects:
        """Do all of it; but where a job fails for good, start nothing before the failures are counted.

        `rows` are the waiting jobs that the plan saw.
        Raises TransientError or OSError when nothing can be booked now; then nothing was closed or started. Raises
        OSError when there was no process to be had for a booked attempt; it is then seen as not started.
        """
        closes = _of(Close, plan)
        has_failures = any(close.verdict.event is JobEvent.FAILED for close in closes)
        starts, claims = ([], []) if has_failures else (_of(Start, plan), _of(Claim, plan))
        starts = starts[: self._attempts.launcher.ready(len(starts) + len(claims), now.monotonic_s)]
        for stop in _of(Stop, plan):  # what needs no room on any disk comes first
            self._attempts.stop(self._attempts.find(stop.attempt.job.id, stop.attempt.number))
        for look in _of(Look, plan):
            self._devices.look(look.devices, self._clock.moment())
        for release in _of(Release, plan):
            self._devices.entries[release.uuid].release()
        effects = self._book(closes, starts, rows, now) if closes or starts else NO_EFFECTS
        for gather in _of(Gather, plan):
            self._devices.claim(gather.devices, self._clock.moment())
        for claim in claims:
            self.step("claim")
            if not self._devices.claim(claim.devices, self._clock.moment()):  # later than any look of this tick
                effects = replace(effects, has_refusals=True)
            self.step("claimed")
        return effects

    def adopt(self, now: Moment) -> None:
        """Take over the attempts that an earlier dispatcher left open."""
        rows = [(job, row) for job, row in attempt_table.running(self._store) if job.origin != "exec"]
        for attempt in self._attempts.adopt(rows, now):
            text = f"{job_title(attempt.job)} was left by an earlier dispatcher: taken over"
            self._reporter.report("started", text, attempt.job.id)

    # ---- closing and starting ----

    def _book(
        self, closes: Sequence[Close], starts: Sequence[Start], rows: Mapping[int, JobRow], now: Moment
    ) -> Effects:
        with self._prepared(starts, rows, now) as prepared:
            self.step("prepared")
            try:
                with self._store.transaction():
                    closed = [(close, self._store_close(close, now)) for close in closes]
                    booked = [each for each in prepared if self._store_start(each.attempt.job, each.attempt.row)]
                    self.step("booking")
            except BaseException:
                transitions.take_stopped(self._store)  # rolled back with the closes
                raise
            for each in booked:
                prepared.remove(each)  # its life lock goes to a shepherd
        self.step("booked")
        for close, state in closed:
            self._finish_close(close, state, now)
        for job_id, state, cause in transitions.take_stopped(self._store):
            self._reporter.report_stopped(job_id, state, cause)
        self._hand_over_all(booked, now)
        self._attempts.remove_booked_files()
        return Effects(
            gone=frozenset(start.job_id for start in starts),
            has_new_jobs=any(state is JobState.QUEUED for _, state in closed),
            has_freed_jobs=transitions.take_freed(self._store),
        )

    @contextmanager
    def _prepared(self, starts: Sequence[Start], rows: Mapping[int, JobRow], now: Moment) -> Iterator[list[_Prepared]]:
        """Prepare these starts as far as they can be; let go, at the end, of those that are still in the list."""
        prepared: list[_Prepared] = []
        try:
            for start in starts:
                each = self._prepare(rows[start.job_id], start.devices, now)
                if each is not None:
                    prepared.append(each)
            yield prepared
        finally:
            for each in prepared:
                os.close(each.life)

    def _prepare(self, job: JobRow, uuids: Sequence[str], now: Moment) -> _Prepared | None:
        number = job.attempts + 1
        life = self._attempts.prepare(job.id, number)
        if life is None:
            return None
        out, err = log_paths(job, number, self._options.settings.split_streams)
        row = AttemptRow(
            job_id=job.id,
            number=number,
            started_at=now.at,
            ended_at=None,
            outcome=None,
            log=out,
            error_log=err,
            devices=tuple([device_use(self._devices, uuid) for uuid in uuids]),
        )
        return _Prepared(self._attempts.new(job, row, now), life)

    def _store_start(self, job: JobRow, row: AttemptRow) -> bool:
        if job_table.get(self._store, job.id) != job:  # it was changed just now: the next plan sees it
            return False
        attempt_table.start(self._store, row.job_id, row.started_at, row.log, row.error_log, row.devices)
        return True

    def _store_close(self, close: Close, now: Moment) -> JobState:
        attempt = self._attempts.find(close.attempt.job.id, close.attempt.number)
        outcome = close.attempt.outcome
        assert outcome is not None, "an attempt is closed only with an outcome"
        foreign, other_device = attempt.use.usage.foreign_use, attempt.use.unassigned_device
        notes = [f"chose its own GPU ({other_device})" if other_device else ""]
        notes += [f"disturbed by {clean(foreign.who[0])}" if foreign.disturbed else "", outcome.note]
        outcome = replace(outcome, note=", ".join(filter(None, notes)))
        job, fields = attempt.job, attempt.life.fields
        avoid, above = steer(outcome, attempt.row.devices, job.avoid, job.above_bytes)
        return attempt_table.close(
            self._store,
            job.id,
            attempt.row.number,
            AttemptEnd(
                outcome,
                attempt.ended_at(now.at),
                usage=attempt.use.usage,
                max_rss_bytes=int(fields["max_rss_kib"]) * 1024 if "max_rss_kib" in fields else None,
                cpu_s=float(fields["cpu_s"]) if "cpu_s" in fields else None,
                progress=attempt.use.progress_text(),
            ),
            close.verdict,
            NextAttempt(
                avoid=avoid,
                above_bytes=0 if job.mem_bytes else above,  # a budget grows instead
                mem_bytes=close.mem_bytes or None,
            ),
            now=now.at,
        )

    def _finish_close(self, close: Close, state: JobState, now: Moment) -> None:
        attempt = self._attempts.find(close.attempt.job.id, close.attempt.number)
        self._attempts.forget(attempt)
        if state is JobState.SUCCEEDED:
            self._reporter.note_success(attempt.row.started_at)
        outcome = attempt.outcome
        assert outcome is not None
        if close.verdict.note:
            outcome = replace(outcome, note=close.verdict.note)
        again = state is JobState.QUEUED
        seconds = attempt.ended_at(now.at) - attempt.row.started_at
        ending, how = "will be tried again" if again else state.value, describe(replace(outcome, note=""))
        text = f"{job_title(attempt.job)} {ending}{'' if how == ending else f': {how},'} after {seconds:.1f} s"
        if note := without_repetition(outcome).note:
            text += f": {note}"
        if again and close.mem_bytes:
            text += f"; its budget is {close.mem_bytes // MIB} MiB from now on"
        notice = "failed" if state is JobState.FAILED else ""
        self._reporter.report(JobEvent.RETRIED.value if again else "ended", text, attempt.job.id, notice)

    def _hand_over_all(self, booked: Sequence[_Prepared], now: Moment) -> None:
        """Hand each of them to a shepherd, then raise the OSError that any of them met."""
        trouble: OSError | None = None
        for each in booked:
            try:
                self._hand_over(each.attempt, each.life, now)
            except OSError as error:
                trouble = error
        if trouble is not None:
            raise trouble

    def _hand_over(self, attempt: OpenAttempt, life: int, now: Moment) -> None:
        uuids = attempt.devices
        self._devices.note_start(uuids, now)
        settings = self._options.settings
        if uuids and self._devices.degraded and settings.visible_devices == "auto" and not self._says_uuids:
            self._says_uuids = True
            text = f"{self._devices.degraded}: jobs get UUIDs in CUDA_VISIBLE_DEVICES from now on"
            self._reporter.report("device", text)
        variables = device_variables(self._devices, uuids, settings.visible_devices)
        attempt.has_indices = variables[b"CUDA_VISIBLE_DEVICES"][:1].isdigit()
        self.step("hand over")
        claims = self._devices.descriptors(uuids)
        inherited = None
        if attempt.job.environment_id is not None:
            inherited = environment.variables(environment_table.read(self._store, attempt.job.environment_id))
        self._attempts.launch(attempt, life, claims, variables, self._options, inherited)
        self.step("handed over")
        where = "GPU " + ",".join(str(device.index) for device in attempt.row.devices) if uuids else "the CPU"
        job = attempt.job
        self._reporter.report("started", f"job {job.id} on {where}: {job.name or shown_line(job.command)}", job.id)


def _of(kind: type[A], plan: Plan) -> list[A]:
    """Return the actions of one kind, in their order."""
    return [action for action in plan.actions if type(action) is kind]


def device_variables(devices: DeviceBook, uuids: Sequence[str], form: str) -> dict[bytes, bytes]:
    """Return the variables that say to an attempt that these are its devices."""
    variables = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": selection.visible_value(devices.devices(), uuids, form, bool(devices.degraded)),
        "GPUSCHED_DEVICES": ",".join(uuids),
        **devices.source.job_environment(),
    }
    return {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}


def device_use(devices: DeviceBook, uuid: str) -> DeviceUse:
    """Return the device as an attempt that begins on it now is booked with it."""
    device, known = devices.entries[uuid].device, devices.entries[uuid].availability
    total = known.sample.total_bytes if known.sample else device.total_bytes
    unknown = total is None or known.foreign_bytes is None
    free = None if unknown else (total or 0) - device.reserved_bytes - (known.foreign_bytes or 0)
    return DeviceUse(uuid, device.index, device.name, free)
