"""Simulated GPUs as a source of readings, for a laptop, a demo and the tests. Opens no GPU, starts nothing.

Its GPUs are files (gpusched.common.simulation); `python -m gpusched.commands.simjob` takes their memory.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field

from gpusched.common import simulation
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.core.model import MIB, Device, DeviceProcess, Reading, Sample


@dataclass(slots=True)
class _File:
    """A key=value file, read again only when it has changed."""

    path: str
    stamp: tuple[int, int, int] = (0, 0, 0)  # of what `keys` was read from
    keys: dict[str, str] = field(default_factory=dict)

    def read(self) -> dict[str, str]:
        found = os.stat(self.path)
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self.stamp:
            self.keys, self.stamp = simulation.read_keys(self.path), stamp
        return self.keys


@dataclass(slots=True)
class _Gpu:
    n: int
    state: _File


class SimulatedSource:
    """Reads a simulation in this process: request() takes the reading, poll() hands it out."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        numbers = simulation.gpu_numbers(directory)
        self._box = _File(os.path.join(directory, "box"))
        self._gpus = [_Gpu(n, _File(os.path.join(simulation.gpu_path(directory, n), "state"))) for n in numbers]
        self._by_uuid = {gpu.state.read()["uuid"]: gpu for gpu in self._gpus}
        self._ready: deque[tuple[float, Reading]] = deque()  # with the moment from which to hand it out
        self._trouble: GpuschedError | None = None

    def request(self, uuids: frozenset[str] | None, now: float) -> None:
        try:
            reading = self._read(uuids, now)
        except (OSError, KeyError, ValueError) as error:
            text = f"the simulation in {self.directory} cannot be read: {error}"
            reading = Reading(now, now, complete=uuids is None, error=text)
        if not reading.error:
            self._trouble = None
            self._ready.append((reading.at, reading))
        elif self._trouble is None:  # one message an outage
            self._trouble = GpuschedError(reading.error, exit_code=EXIT_CANNOT_WORK)
            self._ready.append((now, reading))

    def poll(self, now: float) -> list[Reading]:
        readings: list[Reading] = []
        while self._ready and self._ready[0][0] <= now:
            readings.append(self._ready.popleft()[1])
        return readings

    def deadline(self) -> float | None:
        return self._ready[0][0] if self._ready else None

    def fileno(self) -> None:
        return None

    def trouble(self) -> GpuschedError | None:
        return self._trouble

    def job_environment(self) -> dict[str, str]:
        return {simulation.ENV_DIRECTORY: self.directory}

    def describe(self) -> str:
        names = [gpu.state.keys.get("name", "?") for gpu in self._gpus]
        return f"simulated GPUs ({', '.join(f'{names.count(name)} {name}' for name in dict.fromkeys(names))})"

    def close(self) -> None:
        self._ready.clear()

    def _read(self, uuids: frozenset[str] | None, now: float) -> Reading:
        box = self._box.read()
        if "fail" in box:
            return Reading(now, now, complete=uuids is None, error=box["fail"])
        devices: list[Device] = []
        samples: list[Sample] = []
        slow_ms, release_ms = 0, simulation.number(box.get("release_ms"))
        gone: set[str] = set()
        chosen = self._gpus if uuids is None else [self._by_uuid[u] for u in uuids if u in self._by_uuid]
        for gpu in chosen:
            state = gpu.state.read()
            slow_ms += simulation.number(state.get("slow_ms"))
            if state.get("present") == "0":
                gone.add(state["uuid"])
                continue
            if uuids is None:
                devices.append(_device(state, len(devices)))
            samples.append(self._sample(gpu, state, release_ms, uuids is None, now))
        if uuids is not None:
            unknown = sorted(gone | (uuids - self._by_uuid.keys()))
            samples += [Sample(uuid, now, processes=None, error="lost") for uuid in unknown]
        return Reading(now, now + slow_ms / 1000, tuple(devices), tuple(samples), uuids is None)

    def _sample(self, gpu: _Gpu, state: dict[str, str], release_ms: int, whole: bool, now: float) -> Sample:
        fail = state.get("fail", "ok")
        if fail != "ok":
            text = "Unknown Error" if fail == "unknown" else fail
            return Sample(state["uuid"], now, processes=None, error=text)
        holders = simulation.holders(self.directory, gpu.n, release_ms)
        used = simulation.number(state.get("foreign")) + sum(record.mib for record in holders)
        readable = state.get("memory") != "na"
        processes: tuple[DeviceProcess, ...] | None = None
        if state.get("hidden") != "1":
            processes = tuple(_process(record, readable) for record in holders if record.alive)
        load = sum(simulation.number(record.keys.get("util")) for record in holders if record.alive)
        load = min(100, simulation.number(state.get("util", str(load))))
        return Sample(
            uuid=state["uuid"],
            at=now,
            used_bytes=used * MIB if readable else None,
            total_bytes=simulation.number(state["total"]) * MIB if readable else None,
            processes=processes,
            utilisation=load / 100 if whole else None,
        )


def _device(state: dict[str, str], index: int) -> Device:
    return Device(
        uuid=state["uuid"],
        index=index,
        name=state["name"],
        total_bytes=simulation.number(state["total"]) * MIB if state.get("memory") != "na" else None,
        bus_id=state.get("bus", ""),
        compute_mode=state.get("compute_mode", "default"),
        unified_memory=state.get("unified") == "1",
        group=state.get("group", ""),
    )


def _process(record: simulation.Record, readable: bool) -> DeviceProcess:
    keys = record.keys
    return DeviceProcess(
        pid=record.pid,
        used_bytes=record.mib * MIB if readable else None,
        kind=keys.get("kind", "C"),
        user=keys.get("user", "?"),
        program=keys.get("program", "?"),
    )
