"""The workers of bench/pool.py. Their setup ends when as many of them are there as --set workers=N says."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gpusched
from bench.busy import spend

_PATIENCE_S = 60.0


class Trivial(gpusched.Worker):
    """Doubles a number."""

    def setup(self, device: str, settings: Mapping[str, Any]) -> None:
        here = os.path.join(self.output_dir, "here")
        os.makedirs(here, exist_ok=True)
        with open(os.path.join(here, str(os.getpid())), "w"):
            pass
        until = time.monotonic() + _PATIENCE_S
        while len(os.listdir(here)) < int(settings["workers"]) and time.monotonic() < until:
            time.sleep(0.005)

    def __call__(self, item: Any) -> Any:
        return double(item["value"])


class Sleeper(Trivial):
    """Sleeps as long as its item says, on the first GPU four times as long if `slow` is set."""

    def setup(self, device: str, settings: Mapping[str, Any]) -> None:
        self.factor = 4.0 if settings.get("slow") == os.environ.get("GPUSCHED_DEVICES") else 1.0
        super().setup(device, settings)

    def __call__(self, item: Any) -> Any:
        time.sleep(float(item["value"]) * self.factor)
        return None


class Busy(Trivial):
    """Computes for a CPU time."""

    def __call__(self, item: Any) -> Any:
        spend(float(item["value"]))
        return None


class Launched(gpusched.Worker):
    """Takes a time for each batch and one for each item, as kernels do."""

    def batch(self, items: Sequence[Any]) -> list[None]:
        time.sleep(launch_s(len(items)))
        return [None for _ in items]


def launch_s(items: int) -> float:
    return 0.02 + 0.0002 * items


def double(item: Any) -> dict[str, int]:
    return {"n": int(item) * 2}
