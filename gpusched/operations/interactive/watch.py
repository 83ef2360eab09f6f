"""The time and the use of GPUs that a person has: when it is over, when nothing was on them for long. Ends nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gpusched.common.quantities import format_duration
from gpusched.config.layers import LoadedSettings
from gpusched.core.jobs import usage
from gpusched.core.model import NOTHING_USED, Outcome, OutcomeKind, Sample
from gpusched.dispatcher.timers import Moment, Timer
from gpusched.host.gpus.device_source import DeviceSource
from gpusched.operations.interactive.claim import HeldGpus
from gpusched.operations.queues import Notify

WARN_S = 600.0  # before an end that is due
IDLE_S = 60.0  # without a process, before others are told


class Terms(NamedTuple):
    """The time for which GPUs are had, and the time without a process on them after which that is said, or ends it."""

    for_s: float | None = None
    idle_s: float | None = None
    idle_stops: bool = False

    def with_stated(self, for_s: float | None, loaded: LoadedSettings) -> Terms:
        """Return them with what a person has stated in their place."""
        stated: dict[str, Any] = {"for_s": for_s} if for_s is not None else {}
        if loaded.origins["idle_timeout"] != "default":
            stated["idle_s"] = loaded.settings.idle_timeout
        if loaded.origins["idle_action"] != "default":
            stated["idle_stops"] = loaded.settings.idle_action == "stop"
        return self._replace(**stated)

    def describe(self) -> str:
        """Return them in words, behind the GPUs; empty if there are none."""
        text = f" for {format_duration(self.for_s)} (--for)" if self.for_s else ""
        if self.idle_s is not None and self.idle_stops:
            text += f"; it ends after {format_duration(self.idle_s)} without a process of yours there (--idle-timeout)"
        return text


class Watch:
    """Looks at the held GPUs at each poll. `family` says which of the processes in a sample are its own."""

    def __init__(
        self, held: HeldGpus, source: DeviceSource, terms: Terms, family: Callable[[Sample], set[int]], notify: Notify
    ) -> None:
        self.usage = NOTHING_USED
        self._held, self._uuids, self._label = held, {device.uuid for device in held.devices}, held.label
        self._is_idle = False  # as others have been told
        self._source, self._terms, self._family, self._notify = source, terms, family, notify
        self._poll, self._began_s = Timer(), time.monotonic()
        self._seen_s = self._began_s  # when a process of its own was last seen
        self._is_warned = {"time": False, "idle": False, "report": False}
        self.end_at = None if terms.for_s is None else time.time() + terms.for_s

    def deadline_s(self) -> float:
        """Return when to look again at the latest, in monotonic seconds."""
        end_s = math.inf if self._terms.for_s is None else self._began_s + self._terms.for_s
        return min(end_s, self._poll.due_s, self._source.deadline() or math.inf)

    def look(self, now: Moment, interval_s: float) -> Outcome | None:
        """Take in what has come; return how it is to be ended, if it is."""
        if self._poll.is_due(now):
            self._poll.repeat(now, interval_s)
            self._source.request(None, now.monotonic_s)
        readings = [reading for reading in self._source.poll(now.monotonic_s) if reading.complete]
        for reading in readings:
            self._take([sample for sample in reading.samples if sample.uuid in self._uuids], now)
        if self._is_over("time", self._terms.for_s, now.monotonic_s - self._began_s, "its time is over (--for)"):
            return Outcome(OutcomeKind.TIMED_OUT)
        idle_s, idle_for_s = self._terms.idle_s, now.monotonic_s - self._seen_s
        if not readings or idle_s is None:
            return None
        why = f"no process of yours was on it for {format_duration(idle_s)} (--idle-timeout)"
        if self._terms.idle_stops:
            is_over = self._is_over("idle", idle_s, idle_for_s, why)
            return Outcome(OutcomeKind.TIMED_OUT, cause="idle") if is_over else None
        if idle_for_s < idle_s:
            self._is_warned["report"] = False
        elif not self._is_warned["report"]:
            self._is_warned["report"] = True
            self._notify(f"{self._label}: {why}")
        return None

    def _take(self, samples: list[Sample], now: Moment) -> None:
        own = {pid for sample in samples for pid in self._family(sample)}
        if any(sample.processes is None for sample in samples) or own or not samples:
            self._seen_s = now.monotonic_s
            self._is_warned["idle"] = False
        is_idle = now.monotonic_s - self._seen_s >= IDLE_S
        if is_idle != self._is_idle:
            self._is_idle = is_idle
            since = time.strftime("%H:%M", time.localtime(now.at - IDLE_S))
            self._held.tell(f", idle since {since}" if is_idle else "")
        self.usage = usage.add(self.usage, samples, own, None)

    def _is_over(self, what: str, limit_s: float | None, spent_s: float, why: str) -> bool:
        """Return True if so much time is spent, and say so; say it 10 minutes before too, unless it is shorter."""
        if limit_s is None or spent_s < limit_s - WARN_S:
            return False
        if spent_s >= limit_s:
            self._notify(f"{self._label}: {why}: ending it")
            return True
        if limit_s > WARN_S and not self._is_warned[what]:
            self._is_warned[what] = True
            option = "--for" if what == "time" else "--idle-timeout"
            self._notify(f"{self._label} will be given back in {format_duration(round(limit_s - spent_s))} ({option})")
        return False
