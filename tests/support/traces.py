"""Reads a trace of GPU readings (tests/cases/files/*.nvml.json) into the readings that a GPU source would give.

The format is described in tests/cases/files/FAKE_NVML.md. Knows nothing of what should come of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpusched.core.model import MIB, Device, DeviceProcess, Reading, Sample
from tests.support import build
from tests.support.paths import TESTS

FILES = TESTS / "cases" / "files"
UNIFIED = ("NVIDIA GB10",)
LOST = "NVMLError_GpuIsLost"


@dataclass(frozen=True)
class Trace:
    """One reading a tick; the last one repeats for ever."""

    readings: tuple[Reading, ...]
    uuids: tuple[str, ...]  # by the first index
    expect: dict[str, Any]

    def __iter__(self) -> Iterator[Reading]:
        return iter(self.readings)

    def __getitem__(self, tick: int) -> Reading:
        return self.readings[min(tick, len(self.readings) - 1)]


def read_trace(name: str, *, v1: bool = False, card: str | None = None) -> Trace:
    """`v1` reads memory as the older call does, with the driver's reserve; `card` is another name for every GPU."""
    document = json.loads((FILES / name).read_text(encoding="utf-8"))
    gpus = {str(gpu["index"]): gpu for gpu in document["gpus"]}
    readings = []
    for tick in document["ticks"]:
        at = float(tick["t"] * document["tick_seconds"])
        order = tick.get("order", list(gpus))
        devices = [_device(gpus[key], index, card) for index, key in enumerate(order)]
        samples = [_sample(gpus[key], tick["gpu"][key], at, v1) for key in order]
        readings.append(Reading(at, at, tuple(devices), tuple(samples)))
    return Trace(tuple(readings), tuple(gpu["uuid"] for gpu in gpus.values()), document["expect"])


def _device(gpu: dict[str, Any], index: int, card: str | None) -> Device:
    name = card or gpu["name"]
    return build.device(
        index,
        uuid=gpu["uuid"],
        name=name,
        total_bytes=_bytes(gpu["total_mib"]),
        bus_id=gpu["bus_id"],
        unified_memory=name in UNIFIED,
    )


def _sample(gpu: dict[str, Any], found: dict[str, Any], at: float, v1: bool) -> Sample:
    if "error" in found:
        return Sample(gpu["uuid"], at, processes=None, error="lost" if found["error"] == LOST else found["error"])
    used = None if "error_memory" in found else found["used_mib"] + (found["reserved_mib"] if v1 else 0)
    return Sample(
        uuid=gpu["uuid"],
        at=at,
        used_bytes=_bytes(used),
        total_bytes=_bytes(gpu["total_mib"]),
        processes=tuple(DeviceProcess(p["pid"], p["mib"] * MIB, "C", p["user"], p["name"]) for p in found["procs"]),
        utilisation=found["util"] / 100,
        memory_includes_reserve=v1,
    )


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * MIB
