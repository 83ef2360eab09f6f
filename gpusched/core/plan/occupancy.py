"""Count the devices and limits that are left while one plan is made. Chooses no device.

A device with a job that states `mem` is shared: it has room for others. Every other device is for one job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusched.common.text import count
from gpusched.core.model import JobRow
from gpusched.core.plan import learned_memory
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.learned_memory import Share
from gpusched.core.plan.snapshot import ENDED_FACTS, MARGIN_BYTES, Claim, DeviceView, Look, Reason, Snapshot, Start

LOOK_FRESH_S = 0.5  # a reading this young is a last look at a device that jobs of ours share


@dataclass(slots=True)
class Room:
    """The room for more jobs on a device that this queue has, or is about to get."""

    device: DeviceView
    left_bytes: int
    jobs: int
    startable: bool  # claimed, and read since
    fresh: bool  # read within the last half second


class Occupancy:
    """The devices that are free as a whole, the room on shared ones, and the limits not yet used up.

    `assign` and `assign_cpu` count a job; everything here only shrinks while a plan is made.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._at = snapshot
        limits = snapshot.limits
        open_attempts = [a for a in snapshot.attempts if a.fact not in ENDED_FACTS]
        on_jobs = {uuid for attempt in open_attempts for uuid in attempt.devices}
        settling = {d.uuid for d in snapshot.devices if d.held and d.availability.state is DeviceState.SETTLING}
        # the shepherd of an attempt that cannot be ended keeps its claim: give ours back, so that nothing starts there
        stuck = {u for a in snapshot.attempts if a.outcome and a.outcome.cause == "unkillable" for u in a.devices}
        self._kept = on_jobs | (settling - stuck)
        self.gpus_left = limits.max_gpus - len(self._kept)
        self._cpu_jobs_left = limits.cpu_jobs - sum(not a.devices and not a.job.states_host for a in open_attempts)
        free = [d for d in snapshot.devices if d.availability.state is DeviceState.FREE and not d.refused]
        self.whole = [d for d in free if d.uuid not in self._kept | stuck]
        self.rooms = {d.uuid: room for d in snapshot.devices if (room := self._room(d)) is not None}
        self.devices_of_tag = {
            tag: {uuid for attempt in open_attempts if tag in attempt.job.tags for uuid in attempt.devices}
            for tag in limits.tag_gpus
        }
        self.assigned = set[str]()  # devices that were free as a whole, and go to a job of this plan
        self._looks = set[str]()

    def _room(self, device: DeviceView) -> Room | None:
        """Return the room on a device that jobs of ours share; None if it is not open to others."""
        now = device.availability
        smallest = min((resident.budget_bytes for resident in device.residents), default=0)
        if device.alone or device.refused or not device.held or not smallest:
            return None
        others_absent = now.count >= self._at.max_checks and now.settling_since is None
        if now.state is not DeviceState.RUNNING or not others_absent or now.foreign_bytes is None:
            return None
        used = now.foreign_bytes + sum(resident.counted_bytes for resident in device.residents)
        left = device.capacity_bytes - used - MARGIN_BYTES
        fresh = device.looked_again or abs(self._at.now - now.at) <= LOOK_FRESH_S  # a clock can be set back
        return Room(device, left, len(device.residents), True, fresh)

    @property
    def ours(self) -> set[str]:
        """The devices that run, settle, or are about to start for this queue."""
        return self._kept | self.assigned

    def looks(self) -> list[Look]:
        """Return the reading that shared devices need before another job joins, if any does."""
        return [Look(tuple(sorted(self._looks)))] if self._looks else []

    def unused(self) -> list[str]:
        """Return the claimed devices that neither run, nor settle, nor are about to start: the claims to release."""
        ours = self.ours
        return [d.uuid for d in self._at.devices if d.held and d.uuid not in ours]

    def share(self, job: JobRow, device: DeviceView) -> Share:
        """Return what the job counts with on this device."""
        limits = self._at.limits
        return learned_memory.share(job, device.name, self._at.learned, limits.tag_mem, limits.safety_factor)

    def has_room(self, room: Room, job: JobRow) -> bool:
        """Return True if the job may join those on a shared device."""
        share, most = self.share(job, room.device), self._at.limits.jobs_per_gpu
        fits = share.budget_bytes and room.left_bytes >= share.budget_bytes and room.jobs < share.most(most)
        return bool(fits) and room.device.is_model(job.gpu_model)

    def offer_bytes(self, device: DeviceView) -> int:
        """Return the largest budget that the device has room for now."""
        room = self.rooms.get(device.uuid)
        return room.left_bytes if room else device.free_bytes - MARGIN_BYTES

    # ---- assigning ----

    def assign_cpu(self, job: JobRow) -> Start | Reason:
        if job.states_host:
            return Start(job.id, ())
        if self._cpu_jobs_left <= 0:
            return Reason("cpu_jobs", f"no more than {count(self._at.limits.cpu_jobs, 'CPU job')} at once (--cpu-jobs)")
        self._cpu_jobs_left -= 1
        return Start(job.id, ())

    def assign(self, job: JobRow, devices: Sequence[DeviceView]) -> Start | Claim | Reason:
        """Count the job on these devices. Return its start, or the claim or the reading that must come first."""
        for tag in job.tags:
            if tag in self.devices_of_tag:
                self.devices_of_tag[tag].update(d.uuid for d in devices)
        shared = [self.rooms[d.uuid] for d in devices if d.uuid in self.rooms]
        whole = [d for d in devices if d.uuid not in self.rooms]
        unclaimed = tuple(d.uuid for d in whole if not d.held)
        unread = [d for d in whole if d.held and not d.looked]
        for room in shared:
            share = self.share(job, room.device)
            room.left_bytes = room.left_bytes - share.budget_bytes if share.is_known else 0
            room.jobs += 1
        for device in whole:
            self._assign_whole(job, device, startable=not unclaimed and not unread)
        if unclaimed:
            return Claim(job.id, unclaimed)
        stale = [room.device for room in shared if room.startable and not room.fresh]
        self._looks.update(d.uuid for d in stale)
        pending = [*unread, *stale, *(room.device for room in shared if not room.startable)]
        if pending:
            return Reason("look", f"last check of {', '.join(d.label for d in pending)} before the start")
        return Start(job.id, tuple(d.uuid for d in devices))

    def _assign_whole(self, job: JobRow, device: DeviceView, *, startable: bool) -> None:
        self.assigned.add(device.uuid)
        self.gpus_left -= 1
        self.whole.remove(device)
        budget_bytes = self.share(job, device).running_bytes(is_settled=False)
        sample = device.availability.sample
        tells_apart = sample is None or sample.processes is not None
        if budget_bytes and tells_apart and not device.alone:
            left = device.free_bytes - budget_bytes - MARGIN_BYTES
            self.rooms[device.uuid] = Room(device, left, 1, startable and device.held and device.looked, True)
