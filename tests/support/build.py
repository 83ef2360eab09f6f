"""The builders of the tests: one for each noun of the plan and of the store. A test names only what matters to it."""

from __future__ import annotations

from typing import Any

from gpusched.core.model import MIB, Attempt, AttemptRow, Device, JobRow
from gpusched.core.plan.availability import Availability, DeviceState
from gpusched.core.plan.snapshot import DeviceView, Resident

GIB = 1024 * MIB


def device(index: int = 0, *, name: str = "NVIDIA A5000", total_bytes: int | None = 24 * GIB, **more: Any) -> Device:
    """Return GPU `index`; its UUID is GPU-`index`."""
    return Device(**{"uuid": f"GPU-{index}", "index": index, "name": name, "total_bytes": total_bytes, **more})


def device_view(
    index: int = 0,
    state: DeviceState = DeviceState.FREE,
    *,
    availability: Availability | None = None,
    why: str = "",
    foreign_mib: int | None = 4,
    total_gib: float | None = 24,
    held: bool = False,
    looked: bool | None = None,
    **more: Any,
) -> DeviceView:
    """Return GPU `index` as the plan sees it.

    `availability` takes the place of `state`, `why` and `foreign_mib`. A held device has been looked at, unless
    `looked` is False.
    """
    if availability is None:
        foreign = None if foreign_mib is None else foreign_mib * MIB
        availability = Availability(f"GPU-{index}", state=state, why=why or state.value, foreign_bytes=foreign)
    return DeviceView(
        availability,
        total_bytes=None if total_gib is None else round(total_gib * GIB),
        label=f"GPU {index}",
        held=held,
        looked=held if looked is None else looked,
        **more,
    )


def resident(job_id: int = 1, mem_gib: float = 0, **more: Any) -> Resident:
    """Return a job on a device."""
    return Resident(job_id, round(mem_gib * GIB), **more)


def job(job_id: int = 1, gpus: int = 1, *, mem_gib: float = 0, **more: Any) -> JobRow:
    """Return a waiting job; without a budget (`mem_gib`) it has its devices alone."""
    return JobRow(job_id, gpus=gpus, **{"mem_bytes": round(mem_gib * GIB), **more})


def attempt(job_id: int = 1, *devices: int | str, number: int = 1, mem_gib: float = 0, **more: Any) -> Attempt:
    """Return an open attempt of a job on these devices, each named by its number or its UUID."""
    uuids = tuple(each if isinstance(each, str) else f"GPU-{each}" for each in devices)
    of_job = {name: more.pop(name) for name in JobRow.__slots__ if name in more}
    return Attempt(job(job_id, mem_gib=mem_gib, **of_job), number, uuids, **more)


def job_row(job_id: int = 1, **more: Any) -> JobRow:
    """Return a job as the store holds it: queued and never started."""
    return JobRow(job_id, **{"command": b"true", "line": 1, **more})


def attempt_row(job_id: int = 1, number: int = 1, **more: Any) -> AttemptRow:
    """Return an attempt as the store holds it: open, with one log for both streams."""
    fields = {"started_at": 0.0, "ended_at": None, "outcome": None, "log": "log", "error_log": ""}
    return AttemptRow(job_id, number, **{**fields, **more})
