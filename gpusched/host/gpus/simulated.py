"""Simulated GPUs as a source of readings, for a laptop, a demo and the tests. Opens no GPU, starts nothing.

Its GPUs are files (gpusched.common.simulation); `python -m gpusched.commands.simjob` takes their memory.
"""

from __future__ import annotations

import os
import time
from collections import Counter

from gpusched.common import simulation
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.core.model import MIB, Device, DeviceProcess, Reading, Sample


class LocalSource:
    """A source that is read in this process: request() takes the reading, poll() returns it. This one has no GPU."""

    def __init__(self) -> None:
        self._ready: list[Reading] = []
        self._trouble: GpuschedError | None = None

    def request(self, uuids: frozenset[str] | None, now: float) -> None:
        try:
            self._ready.append(self._read(uuids, now))
            self._trouble = None
        except GpuschedError as error:
            self._trouble = error
        except (OSError, KeyError) as error:
            self._trouble = GpuschedError(f"{self.describe()} cannot be read: {error}", exit_code=EXIT_CANNOT_WORK)

    def _read(self, uuids: frozenset[str] | None, now: float) -> Reading:
        return Reading(now, now, complete=uuids is None)

    def poll(self, now: float) -> list[Reading]:
        readings, self._ready = self._ready, []
        return readings

    def deadline(self) -> float | None:
        return self._ready[0].at if self._ready else None

    def fileno(self) -> None:
        return None

    def trouble(self) -> GpuschedError | None:
        return self._trouble

    def job_environment(self) -> dict[str, str]:
        return {}

    def describe(self) -> str:
        return "no GPUs"

    def close(self) -> None:
        self._ready.clear()


class SimulatedSource(LocalSource):
    """A simulation as a source."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory
        self._numbers = {self._state(n)["uuid"]: n for n in simulation.gpu_numbers(directory)}

    def job_environment(self) -> dict[str, str]:
        return {simulation.ENV_DIRECTORY: self.directory}

    def describe(self) -> str:
        names = Counter(self._state(n).get("name", "?") for n in self._numbers.values())
        return f"simulated GPUs ({', '.join(f'{count} {name}' for name, count in names.items())})"

    def _state(self, n: int) -> dict[str, str]:
        return simulation.read_keys(os.path.join(simulation.gpu_path(self.directory, n), "state"))

    def _read(self, uuids: frozenset[str] | None, now: float) -> Reading:
        box = simulation.read_keys(os.path.join(self.directory, "box")) or {"fail": "the simulation is gone"}
        if "fail" in box:
            raise GpuschedError(box["fail"], exit_code=EXIT_CANNOT_WORK)
        devices: list[Device] = []
        samples: list[Sample] = []
        chosen = self._numbers if uuids is None else sorted(uuids)
        for uuid in chosen:
            state = self._state(self._numbers[uuid]) if uuid in self._numbers else {}
            if not state or state.get("present") == "0":
                samples += [] if uuids is None else [Sample(uuid, time.time(), processes=None, error="lost")]
                continue
            if uuids is None:
                devices.append(_device(uuid, state, len(devices)))
            samples.append(self._sample(uuid, state, simulation.number(box.get("release_ms"))))
        return Reading(now, now, tuple(devices), tuple(samples), uuids is None)

    def _sample(self, uuid: str, state: dict[str, str], release_ms: int) -> Sample:
        at = time.time()
        fail = state.get("fail", "ok")
        if fail != "ok":
            return Sample(uuid, at, processes=None, error="Unknown Error" if fail == "unknown" else fail)
        records = simulation.holders(self.directory, self._numbers[uuid], release_ms)
        used = simulation.number(state.get("foreign")) + sum(record.mib for record in records)
        alive = [record for record in records if record.alive]
        load = sum(simulation.number(record.keys.get("util")) for record in alive)
        tells = state.get("process_util") != "na"
        return Sample(
            uuid,
            at,
            used_bytes=used * MIB,
            total_bytes=_total_bytes(state),
            processes=None if state.get("hidden") == "1" else tuple(_process(record, tells) for record in alive),
            temperature_c=_float(state.get("temp")),
            power_w=_float(state.get("power_w")),
            uncorrectable=simulation.number(state.get("ecc_uncorr")),
            remap_failed=state.get("remap_failed") == "1",
            utilisation=min(100, simulation.number(state.get("util", str(load)))) / 100,
        )


def _float(text: str | None) -> float | None:
    return None if text is None else float(simulation.number(text))


def _total_bytes(state: dict[str, str]) -> int:
    return simulation.number(state["total"]) * MIB


def _device(uuid: str, state: dict[str, str], index: int) -> Device:
    return Device(
        uuid,
        index,
        name=state["name"],
        total_bytes=_total_bytes(state),
        bus_id=state.get("bus", ""),
        compute_mode=state.get("compute_mode", "default"),
        is_simulated=True,
    )


def _process(record: simulation.Record, tells_use: bool) -> DeviceProcess:
    keys = record.keys
    return DeviceProcess(
        record.pid,
        record.mib * MIB,
        keys.get("kind", "C"),
        keys.get("user", "?"),
        keys.get("program", "?"),
        min(100, simulation.number(keys.get("util"))) / 100 if tells_use else None,
    )
