"""Does what a plan says, in the order that loses nothing and runs nothing twice. Decides nothing.

A start is: claims and life lock, one more look, one transaction that re-checks the job, the hand-over to a shepherd,
and only then the life lock is let go here. Closes share the transaction with the starts of the same tick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpusched.common.errors import GpuschedError
from gpusched.core.documents import shown_line
from gpusched.core.jobs.lifecycle import JobEvent, steer
from gpusched.core.jobs.outcome import describe
from gpusched.core.model import MIB, AttemptRow, DeviceUse, JobRow, JobState
from gpusched.core.plan import selection
from gpusched.core.plan.snapshot import Claim, Close, Look, Plan, Release, Start, Stop
from gpusched.dispatcher.attempt_book import AttemptBook, LaunchStyle, log_paths
from gpusched.dispatcher.device_book import DeviceBook
from gpusched.dispatcher.open_attempt import OpenAttempt
from gpusched.dispatcher.reporter import Reporter
from gpusched.host.gpus.device_source import DeviceSource
from gpusched.host.store import Store, attempt_table, transitions
from gpusched.host.store.attempt_table import AttemptEnd, NextAttempt


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    """An attempt whose life lock is held here and that is not booked yet."""

    job: JobRow
    attempt: AttemptRow
    life: int


class Actor:
    """`style` and `visible_devices` may be set anew at any time. `step` is told the name of each step."""

    def __init__(
        self,
        store: Store,
        source: DeviceSource,
        devices: DeviceBook,
        attempts: AttemptBook,
        reporter: Reporter,
        style: LaunchStyle,
        visible_devices: str,
        clock: Callable[[], float],
        step: Callable[[str], None],
    ) -> None:
        self.style, self.visible_devices = style, visible_devices
        self._store, self._source, self._devices, self._attempts = store, source, devices, attempts
        self._reporter, self._clock, self._step = reporter, clock, step
        self._environments: dict[tuple[str, ...], dict[bytes, bytes]] = {}
        self._told_form = False

    def act(self, plan: Plan, rows: Mapping[int, JobRow], now: float) -> set[int]:
        """Do all of it; the ids of the jobs that no longer wait. `rows` are the waiting jobs that the plan saw.

        Raises DiskFull or OSError when there is no room to book; then nothing was closed or started. Raises OSError
        when there was no process to be had for a booked attempt; it is then seen as not started.
        """
        closes = [action for action in plan.actions if isinstance(action, Close)]
        starts = [action for action in plan.actions if isinstance(action, Start)]
        for action in plan.actions:  # what needs no room on any disk
            if isinstance(action, Stop):
                self._attempts.stop(self._attempts.find(action.attempt.job_id, action.attempt.number))
            elif isinstance(action, Look):
                self._devices.look(action.devices, self._clock())
            elif isinstance(action, Release):
                self._devices.release(action.uuid)
        gone = self._book(closes, starts, rows, now) if closes or starts else set()
        for action in plan.actions:
            if isinstance(action, Claim):
                self._step("claim")
                self._devices.claim(action.devices, self._clock())  # later than any look of this tick
                self._step("claimed")
        return gone

    def forget_labels(self) -> None:
        """Indices may have changed: environments are made anew."""
        self._environments.clear()

    # ---- closing and starting ----

    def _book(
        self, closes: Sequence[Close], starts: Sequence[Start], rows: Mapping[int, JobRow], now: float
    ) -> set[int]:
        prepared: list[_Ready] = []
        booked: list[_Ready] = []
        closed: list[tuple[OpenAttempt, Close, JobState]] = []
        try:
            for start in starts:
                ready = self._prepare(rows[start.job_id], start.devices, now)
                if ready is not None:
                    prepared.append(ready)
            self._step("prepared")
            with self._store.transaction():
                closed = [self._store_close(close, now) for close in closes]
                booked = [ready for ready in prepared if self._store_start(ready)]
                self._step("booking")
        except BaseException:
            booked = []
            transitions.take_stopped(self._store)  # rolled back with the closes
            raise
        finally:
            for ready in prepared:
                if ready not in booked:
                    os.close(ready.life)
        self._step("booked")
        for live, close, state in closed:
            self._finish_close(live, close, state, now)
        for job_id, state, cause in transitions.take_stopped(self._store):
            self._reporter.tell_rippled(job_id, state, cause)
        trouble: OSError | None = None
        for ready in booked:
            try:
                self._hand_over(ready, now)
            except OSError as error:
                trouble = error
        if trouble is not None:
            raise trouble
        return {start.job_id for start in starts}

    def _prepare(self, job: JobRow, uuids: Sequence[str], now: float) -> _Ready | None:
        number = job.attempts + 1
        life = self._attempts.prepare(job.id, number)
        if life is None:
            return None
        uses = []
        for uuid in uuids:
            device, known = self._devices.device(uuid), self._devices.availability(uuid)
            total = known.sample.total_bytes if known.sample else device.total_bytes
            unknown = total is None or known.foreign_bytes is None
            free = None if unknown else (total or 0) - device.reserved_bytes - (known.foreign_bytes or 0)
            uses.append(DeviceUse(uuid, device.index, device.name, free))
        out, err = log_paths(job, number, self.style.split_streams)
        return _Ready(job, AttemptRow(job.id, number, now, None, None, out, err, tuple(uses)), life)

    def _store_start(self, ready: _Ready) -> bool:
        attempt = ready.attempt
        number = attempt_table.start(
            self._store, attempt.job_id, attempt.started_at, attempt.log, attempt.error_log, attempt.devices
        )
        if number is not None and number != attempt.number:
            raise GpuschedError(f"job {attempt.job_id} has an attempt that this dispatcher does not know of")
        return number is not None

    def _store_close(self, close: Close, now: float) -> tuple[OpenAttempt, Close, JobState]:
        attempt, verdict = close.attempt, close.verdict
        live = self._attempts.find(attempt.job_id, attempt.number)
        outcome = attempt.outcome
        assert outcome is not None, "an attempt is closed only with an outcome"
        if live.strange_device and not outcome.note:
            outcome = replace(outcome, note=f"chose its own GPU ({live.strange_device})")
        avoid, above = steer(outcome, live.row.devices, live.job.avoid, live.job.above_bytes)
        if live.job.mem_bytes:
            above = 0  # its budget grows instead
        fields = live.fields
        state = attempt_table.close(
            self._store,
            attempt.job_id,
            attempt.number,
            AttemptEnd(
                outcome,
                live.ended_at(now),
                usage=live.usage,
                max_rss_bytes=int(fields["max_rss_kib"]) * 1024 if "max_rss_kib" in fields else None,
                cpu_s=float(fields["cpu_s"]) if "cpu_s" in fields else None,
                progress=live.progress.decode("utf-8", "replace"),
            ),
            verdict,
            NextAttempt(avoid=avoid, above_bytes=above, mem_bytes=close.mem_bytes or None),
            now=now,
        )
        return live, close, state

    def _finish_close(self, live: OpenAttempt, close: Close, state: JobState, now: float) -> None:
        self._attempts.forget(live)
        if state is JobState.SUCCEEDED:
            self._reporter.succeeded += 1
        assert live.outcome is not None
        again = state is JobState.QUEUED
        what = "will be tried again" if again else state.value
        seconds = live.ended_at(now) - live.row.started_at
        outcome = replace(live.outcome, note=close.verdict.note or live.outcome.note)
        text = f"job {live.job.id} {what}: {describe(outcome)}, after {seconds:.1f} s"
        if again and close.mem_bytes:
            text += f"; its budget is {close.mem_bytes // MIB} MiB from now on"
        self._reporter.tell(JobEvent.RETRIED.value if again else "ended", text, live.job.id)

    def _hand_over(self, ready: _Ready, now: float) -> None:
        job, attempt = ready.job, ready.attempt
        uuids = [device.uuid for device in attempt.devices]
        self._devices.note_occupied(set(uuids), now)
        environment = self._environment(uuids)
        self._step("hand over")
        claims = self._devices.descriptors(uuids)
        self._attempts.launch(job, attempt, ready.life, claims, environment, self.style)
        self._step("handed over")
        where = "the CPU" if not uuids else "GPU " + ",".join(str(d.index) for d in attempt.devices)
        self._reporter.tell("started", f"job {job.id} on {where}: {shown_line(job.command)}", job.id)

    def _environment(self, uuids: Sequence[str]) -> dict[bytes, bytes]:
        """What an attempt's environment says of its devices."""
        degraded = self._devices.degraded if uuids else ""
        key = (*uuids, self.visible_devices, degraded)
        known = self._environments.get(key)
        if known is not None:
            return known
        if degraded and self.visible_devices == "auto" and not self._told_form:
            self._told_form = True
            self._reporter.tell("device", f"{degraded}: jobs get UUIDs in CUDA_VISIBLE_DEVICES from now on")
        given = {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": selection.visible_value(
                self._devices.devices(), uuids, self.visible_devices, bool(degraded)
            ),
            "GPUSCHED_DEVICES": ",".join(uuids),
            **self._source.job_environment(),
        }
        known = {os.fsencode(name): os.fsencode(value) for name, value in given.items()}
        self._environments[key] = known
        return known
