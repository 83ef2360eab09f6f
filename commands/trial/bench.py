"""Workers of one batch size, alive while their number is tried: each count is measured beside the one before it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from gpusched.commands.trial.driver_memory import DriverMemory

from gpusched.pool.tuner.record import TunePlan
from gpusched.pool.tuner.search import Trial, TrialEndedError, TrialOutcome, TrialSetting

WINDOWS = 3  # for each count
WINDOW_S = 0.3  # at least; shorter ones would measure the start of their batches
KEPT_BATCHES = 200  # of which the seconds stay on record


@dataclass(frozen=True, slots=True)
class Window:
    """The work of one worker in a window: the seconds of each batch, and of all; and its peak memory so far."""

    batches: Sequence[float]
    seconds: float
    peak_bytes: int
    memory_by: str


class TrialWorker:
    """A worker in a process of its own, to which this one has a pipe in each direction."""

    def __init__(self, directory: str, setting: TrialSetting, number: int, driver: DriverMemory) -> None:
        self._driver = driver
        command_end, self._command = os.pipe()
        answer, answer_end = os.pipe()
        words = [str(setting.batch_size), str(setting.threads), str(number), str(command_end), str(answer_end)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpusched.commands.trial.child", directory, *words],
            pass_fds=(command_end, answer_end),
        )
        os.close(command_end)
        os.close(answer_end)
        self._answers = os.fdopen(answer, "rb")

    def ask(self, batches: int, items: str) -> None:
        """Have it work on so many batches of `largest` or `sample`. Its answer is to be taken before the next one."""
        try:
            os.write(self._command, json.dumps({"batches": batches, "items": items}).encode() + b"\n")
        except BrokenPipeError:
            pass  # the answer says why

    def answer(self) -> dict[str, Any]:
        """Wait for an answer. Raises TrialEndedError for one that says so, and where none comes."""
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            code = self._process.wait()
            killed = "was killed by signal 9, as the kernel does when the memory of the host is short"
            raise TrialEndedError(TrialOutcome.FAILED, killed if code == -9 else f"has ended with {code}")
        document: dict[str, Any] = json.loads(line)
        if "failed" in document:
            raise TrialEndedError(TrialOutcome(document["failed"]), document["text"])
        return document

    def window(self) -> Window:
        """Wait for the answer; its memory is what the driver tells, else what the worker reports."""
        answer = self.answer()
        used = self._driver.of(self._process.pid)
        return Window(
            answer["batches"], answer["seconds"], used or answer["peak_bytes"], "process" if used else "report"
        )

    def end(self) -> None:
        """End the process and wait: its memory must be free for the next trial."""
        os.close(self._command)
        self._answers.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Bench:
    """The workers that live now, and what the last trial with them said. A context manager that ends them."""

    def __init__(self, directory: str, plan: TunePlan) -> None:
        self._directory, self._plan = directory, plan
        self._children: list[TrialWorker] = []
        self._kind: TrialSetting | None = None  # theirs, without their number
        self._last: Trial | None = None  # made with them
        self._driver = DriverMemory(os.environ.get("GPUSCHED_DEVICES", "").split(","))

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *error: object) -> None:
        self._end_all()
        self._driver.close()

    def measure(self, setting: TrialSetting) -> Trial:
        """Return the trial of a setting."""
        try:
            trial = self._measure(setting)
        except TrialEndedError as error:
            self._end_all()
            return Trial(setting, error.outcome, message=f"batch size {setting.batch_size}: {error}")
        self._last = trial
        return trial

    def _measure(self, setting: TrialSetting) -> Trial:
        peak = self._start_workers(setting)
        child = self._children[0]
        child.ask(1, "sample")
        pace = child.window().seconds
        wanted = self._plan.trial_items / (WINDOWS * setting.workers * setting.threads * setting.batch_size)
        batches = setting.threads * max(1, math.ceil(wanted), math.ceil(WINDOW_S / max(pace, 1e-6)))
        one_less = replace(setting, workers=setting.workers - 1)
        last = self._last if self._last is not None and self._last.setting == one_less else None
        rates, before, seconds = [], [], []
        for _ in range(WINDOWS):
            if last is not None:
                before.append(_rate(self._run(setting.workers - 1, batches), setting.batch_size))
            windows = self._run(setting.workers, batches)
            rates.append(_rate(windows, setting.batch_size))
            seconds += [each for window in windows for each in window.batches]
            peak = max(peak, *(window.peak_bytes for window in windows))
        drift = last.items_per_s / fmean(before) if last is not None else 1.0  # since the last trial
        error = stdev(rates) / fmean(rates) / math.sqrt(WINDOWS)
        kept = tuple(round(each, 6) for each in seconds[:KEPT_BATCHES])
        memory_by = windows[0].memory_by if peak else ""
        return Trial(
            setting, TrialOutcome.OK, fmean(rates) * drift, error, peak or None, memory_by=memory_by, batch_seconds=kept
        )

    def _start_workers(self, setting: TrialSetting) -> int:
        """Have so many workers of this kind, warmed up by the largest items; return the largest peak memory of one."""
        kind = replace(setting, workers=0, is_again=False)
        if kind != self._kind or len(self._children) > setting.workers:
            self._end_all()
        self._kind = kind
        peak = 0
        while len(self._children) < setting.workers:
            child = TrialWorker(self._directory, setting, len(self._children), self._driver)
            self._children.append(child)
            child.answer()  # it is ready
            child.ask(setting.threads, "largest")
            peak = max(peak, child.window().peak_bytes)
        return peak

    def _run(self, workers: int, batches: int) -> list[Window]:
        """Have the first workers run so many batches each, at the same time."""
        active = self._children[:workers]
        for child in active:
            child.ask(batches, "sample")
        return [child.window() for child in active]

    def _end_all(self) -> None:
        for child in self._children:
            child.end()
        self._children, self._kind, self._last = [], None, None


def _rate(windows: Sequence[Window], batch_size: int) -> float:
    """Return items per second: of each worker over its own time, since they do not end together."""
    return sum(len(window.batches) * batch_size / window.seconds for window in windows)
