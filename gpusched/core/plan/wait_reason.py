"""Explain in words for people why a job gets no device. Decides nothing: core/plan/placement has decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from gpusched.core.model import MIB, Job
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.snapshot import MARGIN_BYTES, DeviceView, Limits

_SHOWN_DEVICES = 8


def want(job: Job) -> str:
    """Return the devices that the job waits for: "2 A100 GPUs with 18432 MiB"."""
    model = f"{job.gpu_model} " if job.gpu_model else ""
    mem = f" with {job.mem_bytes // MIB} MiB" if job.mem_bytes else ""
    return (f"a {model}GPU" if job.gpus == 1 else f"{job.gpus} {model}GPUs") + mem


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def limit_reached(job: Job, busy: int, limits: Limits) -> str:
    """Return why --max-gpus keeps the job waiting, while the queue has `busy` devices."""
    if job.gpus > limits.max_gpus:
        return f"needs {job.gpus} GPUs, --max-gpus is {limits.max_gpus}"
    return f"{busy} of {limits.max_gpus} GPUs that this queue may hold are in use (--max-gpus)"


def shortage(
    job: Job,
    devices: Sequence[DeviceView],
    limits: Limits,
    *,
    fitting: int,
    needs_larger: bool,
    rooms: Mapping[str, tuple[int, int]],
    assigned: Set[str],
) -> str:
    """Return the devices that the job waits for, and why each device does not serve it.

    `fitting`: number of devices that would serve it; `rooms`: bytes left and jobs on shared devices; `assigned`:
    devices that a job before this one gets.
    """
    room = f" with more than {job.above_bytes // MIB} MiB free, too little the last time" if needs_larger else ""
    notes = [f"{d.label}: {_hurdle(d, job, rooms.get(d.uuid), assigned, limits)}" for d in devices[:_SHOWN_DEVICES]]
    if len(devices) > _SHOWN_DEVICES:
        notes.append(f"{len(devices) - _SHOWN_DEVICES} more")
    have = f", has {fitting}" if job.gpus > 1 else ""
    return f"waits for {want(job)}{room}{have} ({'; '.join(notes) or 'none is allowed'})"


def _hurdle(device: DeviceView, job: Job, room: tuple[int, int] | None, assigned: Set[str], limits: Limits) -> str:
    if not is_model(device, job.gpu_model):
        return f"is no {job.gpu_model}"
    if job.mem_bytes and room is not None:
        left, jobs = room
        if jobs >= limits.jobs_per_gpu:
            return f"{jobs} jobs share it (--max-jobs-per-gpu)"
        return f"{max(0, left) // MIB} MiB left beside {jobs} job(s)"
    if device.uuid in assigned:
        return "goes to a job before this one"
    if job.mem_bytes and device.residents:
        return _not_open(device)
    if job.mem_bytes and device.availability.state is DeviceState.FREE:
        return f"free, but only {max(0, free_bytes(device) - MARGIN_BYTES) // MIB} MiB to give"
    return device.refused or device.availability.why


def _not_open(device: DeviceView) -> str:
    if device.alone:
        return "is for one job at a time (a MIG instance, or in exclusive-process mode)"
    if any(not resident.budget_bytes for resident in device.residents):
        return "runs a job that has it alone (it states no mem)"
    if not device.held:
        return "takes no other job until the jobs of an earlier dispatcher on it have ended"
    return f"takes no other job now: {device.availability.why}"


def is_model(device: DeviceView, gpu_model: str) -> bool:
    return not gpu_model or gpu_model.lower() in device.name.lower()


def is_present(device: DeviceView) -> bool:
    return device.availability.state not in (DeviceState.LOST, DeviceState.SET_ASIDE)


def free_bytes(device: DeviceView) -> int:
    """Return the memory of the board that others do not use; 0 if that is not known."""
    foreign = device.availability.foreign_bytes
    return 0 if foreign is None else device.capacity_bytes - foreign
