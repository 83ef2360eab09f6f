"""The interface of every source of GPU readings, and the choice of the source. Judges no reading.

A source never makes its caller wait and never raises for the trouble of a device: request() sends a question,
poll() returns the answers that have come.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from typing import Protocol

from gpusched.common import simulation
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.core.model import Reading
from gpusched.host.gpus.nvml_source import NvmlSource
from gpusched.host.gpus.simulated import LocalSource, SimulatedSource


class DeviceSource(Protocol):
    """A source of readings of GPUs. Times are on the monotonic clock; no method waits or raises for device trouble."""

    def request(self, uuids: frozenset[str] | None, now: float) -> None:
        """Ask for these devices, or (None) for all devices and also for the values that are slow to read.

        Requests that cannot be sent at once are merged and sent later. A reading's asked_at is that of the
        newest request that it answers, and it was taken after that moment.
        """

    def poll(self, now: float) -> list[Reading]:
        """Return the readings since the last call, the oldest first."""

    def deadline(self) -> float | None:
        """Return the moment at which poll() wants to be called at the latest."""

    def fileno(self) -> int | None:
        """Return a descriptor, always the same, that is readable when poll() has work; None: use deadline() alone."""

    def trouble(self) -> GpuschedError | None:
        """Return why the source as a whole does not answer now, ready to be shown or raised; None if it does."""

    def job_environment(self) -> dict[str, str]:
        """Return the variables by which a job finds the same devices."""

    def describe(self) -> str:
        """Return the source in a few words."""

    def close(self) -> None:
        """End the processes and close the descriptors of the source."""


def open_source(
    simulate: str | None = None,
    *,
    timeout_s: float = 10.0,
    environment: Mapping[str, str] | None = None,
) -> DeviceSource:
    """Return the simulation that `simulate` or GPUSCHED_SIMULATION names, else the NVML of this box."""
    environment = os.environ if environment is None else environment
    if not simulate and not environment.get(simulation.ENV_DIRECTORY):
        return NvmlSource(timeout_s, environment)
    try:
        return SimulatedSource(simulation.locate(simulate, environment))
    except (ValueError, OSError, KeyError) as error:
        where = f"--simulate {simulate}" if simulate else simulation.ENV_DIRECTORY
        raise GpuschedError(f"cannot simulate GPUs: {error}", where=where, hint="for example --simulate 4") from None


def read_once(source: DeviceSource, timeout_s: float = 60.0) -> Reading:
    """Wait for one complete reading. Raises GpuschedError (exit 3) if there is no GPU, or no answer in `timeout_s`."""
    end = time.monotonic() + timeout_s
    source.request(None, time.monotonic())
    waiter = select.poll()
    fileno = source.fileno()
    if fileno is not None:
        waiter.register(fileno, select.POLLIN)
    while True:
        now = time.monotonic()
        for reading in source.poll(now):
            if reading.complete and not reading.devices:
                raise GpuschedError(
                    "the driver lists no GPU",
                    hint="`nvidia-smi -L` lists the GPUs that the driver sees; without a GPU, try --simulate 4",
                    exit_code=EXIT_CANNOT_WORK,
                )
            if reading.complete:
                return reading
        if (trouble := source.trouble()) is not None:
            raise trouble
        if now >= end:
            raise GpuschedError(f"no answer in {timeout_s:g} s", where=source.describe(), exit_code=EXIT_CANNOT_WORK)
        until = min(end, source.deadline() or end)
        waiter.poll(max(0.0, until - now) * 1000 + 1)


class NoSource(LocalSource):
    """The source of a box without GPUs, for queues whose jobs need none."""
