"""Explain in words for people why a job gets no device. Decides nothing: core/plan/placement has decided."""

from __future__ import annotations

from gpusched.common.text import count
from gpusched.core.model import MIB, JobRow
from gpusched.core.plan.availability import OPEN_STATES, RUNS_OURS, DeviceState, company
from gpusched.core.plan.occupancy import Occupancy
from gpusched.core.plan.snapshot import MARGIN_BYTES, DeviceView, Limits, Snapshot

_SHOWN_LABELS = 3
_SHOWN_NOTES = 8  # each of the devices with the same hurdle


def want(job: JobRow) -> str:
    """Return in words the devices that the job waits for: "2 A100 GPUs with 18432 MiB"."""
    model = f"{job.gpu_model} " if job.gpu_model else ""
    mem = f" with {job.mem_bytes // MIB} MiB" if job.mem_bytes else ""
    alone = " without processes of others" if job.alone else ""
    return (f"a {model}GPU" if job.gpus == 1 else f"{job.gpus} {model}GPUs") + mem + alone


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def limit_reached(job: JobRow, occupancy: Occupancy, limits: Limits) -> str:
    """Return why --max-gpus, or the limit of the user, keeps the job waiting."""
    busy = len(occupancy.ours)
    if limits.user_gpus and limits.max_gpus - busy >= job.gpus:
        return (
            f"you have {occupancy.held_by_user} of the {limits.user_gpus} GPUs that you may hold in all queues, "
            "`exec` and `reserve` together (max_gpus_per_user)"
        )
    return f"this queue holds {busy} of the {limits.max_gpus} GPUs that it may (--max-gpus)"


def shortage(job: JobRow, snapshot: Snapshot, occupancy: Occupancy, fitting: int, needs_larger: bool) -> str:
    """Return in words what the job waits for, and the state of each device. `fitting`: how many it could have now."""
    room = f" with more than {job.above_bytes // MIB} MiB free, too little the last time" if needs_larger else ""
    groups: dict[str | tuple[str, str], list[DeviceView]] = {}
    only = [device for device in snapshot.devices if device.uuid == job.gpu_model]
    for device in only or snapshot.devices:
        hurdle = _hurdle(device, job, occupancy, snapshot.limits)
        user = _user(device) if hurdle == device.availability.why else None
        groups.setdefault(user or hurdle, []).append(device)
    notes = [_note(hurdle, each) for hurdle, each in groups.items()]
    if len(notes) > _SHOWN_NOTES:
        notes[_SHOWN_NOTES:] = [f"{sum(map(len, list(groups.values())[_SHOWN_NOTES:]))} more"]
    if only:
        return f"waits for {only[0].label}{room} ({notes[0].removeprefix(only[0].label).lstrip(': ')})"
    have = f", has {fitting}" if job.gpus > 1 else ""
    return f"waits for {want(job)}{room}{have} ({', '.join(notes)})"


def _user(device: DeviceView) -> tuple[str, str] | None:
    """Return who keeps a busy device from being free by its memory: user and program of the largest process."""
    known = device.availability
    others = [] if known.sample is None else [p for p in known.sample.processes or () if p.kind != "G"]
    if known.state is not DeviceState.BUSY or not known.foreign_bytes or not others:
        return None
    largest = max(others, key=lambda process: process.used_bytes or 0)
    return largest.user, largest.program


def _note(hurdle: str | tuple[str, str], devices: list[DeviceView]) -> str:
    """Return what keeps a job from these devices: a hurdle in words, or a user and a program."""
    several = len(devices) > 1
    if several and hurdle == RUNS_OURS:
        return f"{len(devices)} GPUs run your jobs"
    which = ", ".join(device.label for device in devices) if len(devices) <= _SHOWN_LABELS else f"{len(devices)} GPUs"
    if isinstance(hurdle, str):
        return f"{which}: {hurdle}"
    gib = sum(device.availability.foreign_bytes or 0 for device in devices) / 2**30
    total = " in all" if several else ""
    return f"{which} {'are' if several else 'is'} used by {hurdle[0]} ({gib:.1f} GiB{total}, {hurdle[1]})"


def _hurdle(device: DeviceView, job: JobRow, occupancy: Occupancy, limits: Limits) -> str:
    if not device.is_model(job.gpu_model):
        return f"is no {job.gpu_model}"
    room, share = occupancy.rooms.get(device.uuid), occupancy.share(job, device)
    if share.budget_bytes and room is not None:
        if room.jobs >= share.most(limits.jobs_per_gpu):
            why = "--max-jobs-per-gpu" if room.jobs >= limits.jobs_per_gpu else "since an out-of-memory: mem=auto"
            return f"shared by {count(room.jobs, 'job')} ({why})"
        of = f" of {share.budget_bytes // MIB}" if job.sibling_tag else ""
        return f"{max(0, room.left_bytes) // MIB}{of} MiB left beside {count(room.jobs, 'job')}"
    if device.uuid in occupancy.assigned:
        return "goes to a job before this one"
    if device.refused:
        return device.refused
    is_ours, is_interactive = device.uuid in occupancy.ours, not (device.residents or device.held)
    if is_ours and (is_interactive or device.availability.state in OPEN_STATES):  # one that began since the last look
        return RUNS_OURS
    if learning := next((resident for resident in device.residents if resident.is_learning), None):
        return f"waits until the memory of job {learning.job_id} has settled (mem=auto)"
    if share.budget_bytes and device.residents:
        if device.alone:
            return "is for one job at a time (a MIG instance, or in exclusive-process mode)"
        if not device.held:
            return "takes no other job until the jobs of an earlier dispatcher on it have ended"
        if any(not resident.budget_bytes for resident in device.residents):
            return "runs a job that shares it with none (it states no mem)"
        return f"takes no other job now: {device.availability.why}"
    if job.alone and device.availability.state is DeviceState.FREE and (others := company(device.availability)):
        return others
    if job.mem_bytes and device.availability.state is DeviceState.FREE:
        return f"free, but only {max(0, device.free_bytes - MARGIN_BYTES) // MIB} MiB to give"
    return device.availability.why
