"""The files of a tuning: what is to be tried, the items for it, and the trials that were made."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from gpusched.common.files import write_atomically
from gpusched.pool.options import PoolOptions
from gpusched.pool.tuner.search import SearchResult, SearchSpace, Trial, TrialOutcome, TrialSetting, search

PLAN, SAMPLE, LARGEST = "tune.json", "sample.jsonl", "largest.jsonl"


@dataclass(frozen=True, slots=True)
class TunePlan:
    """The options and the search space of all trials. `device`: the model of the GPU, or the CPU."""

    options: PoolOptions
    space: SearchSpace
    trial_items: int
    device: str

    @property
    def trials_name(self) -> str:
        """The name of the file of trials: another one for another worker, other settings, other items or devices."""
        options = self.options
        parts = [options.worker, options.command, options.items, options.size_key, sorted(options.set), self.device]
        digest = hashlib.blake2b(json.dumps([*parts, self.trial_items]).encode(), digest_size=6).hexdigest()
        return f"trials-{digest}.jsonl"

    def trials_ahead(self, known: Mapping[TrialSetting, Trial]) -> list[Trial]:
        """Return the trials of a search in which each larger setting is better, and fits; known ones as they were."""
        most = max([trial.items_per_s for trial in known.values()], default=1.0) or 1.0

        def assume(setting: TrialSetting) -> Trial:
            return Trial(setting, TrialOutcome.OK, most * setting.batch_size * setting.workers * setting.threads)

        result = follow(self.space, known, assume)
        assert result is not None
        return [known.get(trial.setting) or Trial(trial.setting, TrialOutcome.AHEAD) for trial in result.trials]

    def write(self, directory: str) -> None:
        write_atomically(f"{directory}/{PLAN}", msgspec.json.encode(self), sync=True)

    @classmethod
    def read(cls, directory: str) -> TunePlan:
        with open(f"{directory}/{PLAN}", "rb") as file:
            return msgspec.json.decode(file.read(), type=cls)


class TrialRecord:
    """The trials of a plan in a file, one a line. A line that a kill has cut is measured again."""

    def __init__(self, directory: str, plan: TunePlan) -> None:
        self._path = f"{directory}/{plan.trials_name}"

    def read(self) -> dict[TrialSetting, Trial]:
        """Return the trials by their setting."""
        trials = {}
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
            for line in file:
                with suppress(msgspec.DecodeError):
                    trial = msgspec.json.decode(line, type=Trial)
                    trials[trial.setting] = trial
        return trials

    def add(self, trial: Trial) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "ab") as file:
            file.write(b"\n" + msgspec.json.encode(trial) + b"\n")  # the first ends a line that was cut

    def clear(self) -> None:
        """Forget the trials."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)


def follow(
    space: SearchSpace, known: Mapping[TrialSetting, Trial], measure: Callable[[TrialSetting], Trial | None]
) -> SearchResult | None:
    """Search with the trials on record, and with those that `measure` makes; None where it makes none."""
    steps = search(space)
    try:
        setting = next(steps)
        while (trial := known.get(setting) or measure(setting)) is not None:
            setting = steps.send(trial)
    except StopIteration as end:
        result: SearchResult = end.value
        return result
    return None
