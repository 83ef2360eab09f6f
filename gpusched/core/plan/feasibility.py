"""Judge if a job could ever start on these devices under these limits, and say why not. Reads nothing."""

from __future__ import annotations

from collections.abc import Sequence

from gpusched.core.model import MIB, Device, JobRow, Requirements
from gpusched.core.plan.host_room import beyond_limits
from gpusched.core.plan.snapshot import MARGIN_BYTES, DeviceView, Limits


def impossible(needs: Requirements | JobRow, limits: Limits, devices: Sequence[Device | DeviceView]) -> str:
    """Return why a job with these needs can never start on these allowed devices; empty if it can."""
    if beyond := beyond_limits(needs.cpus, needs.ram_bytes, limits):
        return beyond
    want = "a GPU" if needs.gpus == 1 else f"{needs.gpus} GPUs"
    model = needs.gpu_model.lower()
    fitting = [device for device in devices if model in device.name.lower() or needs.gpu_model == device.uuid]
    if needs.gpus > len(fitting):
        named = f" named {needs.gpu_model}" if model else ""
        there = {0: "there is none", 1: "1 is allowed"}.get(len(fitting), f"{len(fitting)} are allowed")
        return f"wants {want}{named}, and {there} here"
    if needs.gpus > limits.max_gpus:
        raised = f"--max-gpus {needs.gpus} at a start, or `gpusched set max-gpus={needs.gpus}`, raises that"
        return f"wants {want}, and this queue may hold {limits.max_gpus} at most: {raised}"
    for tag in needs.tags:
        if needs.gpus > limits.tag_gpus.get(tag, needs.gpus):
            return f"wants {want}, and the tag {tag} may hold {limits.tag_gpus[tag]} (--tag-max-gpus)"
    rooms = sorted(map(to_give, fitting), reverse=True)
    if needs.gpus and rooms[needs.gpus - 1] < (needs.mem_bytes or 0):
        most = rooms[needs.gpus - 1] // MIB
        return f"wants {needs.mem_bytes // MIB} MiB on {want}, and {want} here can give {most} at most"
    return ""


def to_give(device: Device | DeviceView) -> int:
    """Return the largest memory budget that a device has room for; 0 where its memory cannot be read."""
    return max(0, (device.total_bytes or 0) - device.reserved_bytes - MARGIN_BYTES)
