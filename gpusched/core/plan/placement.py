"""Choose the devices for a waiting job, while one plan is made. Decides for one job after the other; stops none.

The devices and limits that are left only shrink while a plan is made. So if a job cannot start, no later job of the
same shape can, and the plan of the first few jobs of each shape is the plan of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil

from gpusched.common.quantities import format_duration
from gpusched.common.text import clean
from gpusched.core.jobs.lifecycle import LOSS_LIMIT, is_backing_off
from gpusched.core.model import JobRow
from gpusched.core.plan.availability import DeviceState, company
from gpusched.core.plan.backfill import Backfill
from gpusched.core.plan.fairness import Turns, Want
from gpusched.core.plan.feasibility import impossible
from gpusched.core.plan.host_room import HostRoom
from gpusched.core.plan.occupancy import Occupancy
from gpusched.core.plan.snapshot import MARGIN_BYTES, Claim, DeviceView, Reason, Snapshot, Start
from gpusched.core.plan.wait_reason import limit_reached, shortage, want


class Placement:
    """The placing of jobs in one plan."""

    def __init__(self, snapshot: Snapshot, occupancy: Occupancy) -> None:
        self._at = snapshot
        self._limits = snapshot.limits
        self._occupancy = occupancy
        self._backfill = Backfill(snapshot)
        self._host = HostRoom(snapshot)
        self._turns = Turns(snapshot.sharing)
        self.left_to = self._turns.left_to  # devices that are left to other users, by UUID
        self.want: Want | None = None  # of the first job that waits for nothing but devices
        self._shape_reasons: dict[tuple[object, ...], Reason] = {}  # for later jobs of a shape that cannot start now
        # the memory that each device is certain to offer once it is free of others, the largest first
        certain = (d.capacity_bytes - snapshot.threshold_bytes for d in snapshot.devices if d.is_present)
        self._certain_bytes = sorted(certain, reverse=True)

    @property
    def passed(self) -> tuple[int, ...]:
        """The jobs that wait for devices while a job behind them gets some."""
        return tuple(self._backfill.passed)

    def place(self, job: JobRow) -> Start | Claim | Reason:
        """Return the job's start, the claim that comes before it, or the reason why it does not start now."""
        if self._at.closed_to_starts:
            return Reason("closed", self._at.closed_to_starts)
        if job.begin_at > self._at.now:
            return Reason("begin", f"begins in {format_duration(ceil(job.begin_at - self._at.now))}")
        if is_backing_off(job.not_before, self._at.now):
            return Reason("back_off", f"tried again in {job.not_before - self._at.now:.0f} s")
        if (shortage_of_host := self._host.reason(job)) is not None:
            return shortage_of_host
        placed = self._place(job)
        if not isinstance(placed, Reason) or placed.kind == "look":
            self._host.take(job)
        return placed

    def _place(self, job: JobRow) -> Start | Claim | Reason:
        if job.gpus == 0:
            return self._occupancy.assign_cpu(job)
        if self._at.gpus_closed:
            return Reason("nvml", self._at.gpus_closed)
        tags = tuple(tag for tag in job.tags if tag in self._limits.tag_gpus)
        memory = (job.mem_bytes, job.above_bytes, job.sibling_tag, job.losses >= LOSS_LIMIT)
        shape = (job.gpus, *memory, job.gpu_model, job.alone, job.cpus, job.ram_bytes, tags)
        if shape in self._shape_reasons:
            return self._shape_reasons[shape]
        placed = self._place_gpu(job)
        if isinstance(placed, Reason) and placed.kind != "look":
            behind = Reason("behind", f"behind job {job.id}: {placed.text}", placed.shortage)
            self._shape_reasons[shape] = placed if placed.kind == "never" else behind
        return placed

    def _place_gpu(self, job: JobRow) -> Start | Claim | Reason:
        if never := impossible(job, self._limits, self._at.devices):
            none_seen = f"waits for {want(job)}: no GPU that may be used is seen"  # one may come back
            return Reason("never", f"waits in vain: {never}" if self._at.devices else none_seen)
        needs_larger = self._needs_larger(job)
        devices = self._choose(job, needs_larger)
        if not isinstance(devices, Reason):
            self._backfill.note_placed()
            return self._occupancy.assign(job, devices)
        if devices.kind not in ("devices", "max_gpus"):
            return devices
        free = {d.uuid for d in self._occupancy.whole}
        candidates = self._candidates(job, needs_larger, free)
        if devices.kind == "devices" and self.want is None:
            self.want = self._want(job, candidates)
        labels = self._backfill.reserve(job, candidates, free, self._occupancy.ours)
        return replace(devices, text=f"{devices.text}; kept for it: {labels}") if labels else devices

    def _want(self, job: JobRow, candidates: Sequence[DeviceView]) -> Want | None:
        """Return what the job waits for; None if it could not start with these devices either."""
        useful = [d.uuid for d in candidates if not _is_kept_by_a_stranger(d, job)]
        could_start = job.gpus <= min(len(useful), self._occupancy.gpus_left)
        return Want(job.id, job.gpus, tuple(useful)) if could_start else None

    def gather(self) -> list[DeviceView]:
        """Return the free devices to keep for the first job that needs several, after all jobs were placed."""
        if not self._at.sharing.gathers or self.want is None or self.want.gpus == 1:
            return []
        free = [d for d in self._occupancy.whole if d.uuid in self.want.devices and d.uuid not in self.left_to]
        return free[: min(self.want.gpus, self._occupancy.gpus_left)]

    def _leave_to_others(self) -> None:
        """Leave devices to those whose turn comes before ours: free ones first, else one that takes no more jobs."""
        if not self._at.sharing.rivals:
            return
        held, ours = self._occupancy.held_by_user, self._occupancy.ours
        self._turns.leave([d.uuid for d in sorted(self._occupancy.whole, key=lambda d: d.held)], held)
        self._turns.leave([uuid for uuid in self._occupancy.rooms if uuid in ours], held - 1)

    # ---- choosing ----

    def _choose(self, job: JobRow, needs_larger: bool) -> list[DeviceView] | Reason:
        """Return the best devices for this job, or why there are not enough."""
        self._leave_to_others()
        shared = [room.device for room in self._occupancy.rooms.values() if self._occupancy.has_room(room, job)]
        full_tag = self._full_tag(job, shared)
        if full_tag:
            return full_tag
        whole = [d for d in self._occupancy.whole if _fits(d, job, needs_larger, d.free_bytes)]
        whole = [d for d in whole if not company(d.availability)] if job.alone else whole
        reserved = self._left_texts() | self._backfill.reserved
        reservations = [reserved[d.uuid] for d in (*shared, *whole) if d.uuid in reserved]
        shared = [d for d in shared if d.uuid not in reserved]
        whole = [d for d in whole if d.uuid not in reserved]
        ranked = self._rank(job, shared, whole, needs_larger)
        if len(ranked) < job.gpus:
            if reservations:
                return Reason("devices", f"waits for {want(job)}; {reservations[0]}")
            if self._occupancy.gpus_left < job.gpus and not (job.budget_bytes or job.sibling_tag):  # none to share
                return Reason("max_gpus", limit_reached(job, self._occupancy, self._limits))
            text = shortage(job, self._at, self._occupancy, len(ranked), needs_larger)
            return Reason("devices", text, "memory" if self._lacks_memory_only(job) else "")
        for order in self._orders(job, ranked):
            chosen = self._affordable(job, order)
            if chosen:
                return chosen
        return self._unaffordable(job, len(shared))

    def _left_texts(self) -> dict[str, str]:
        """Return why a device is left to another user, by UUID."""
        why = "who waits for a GPU and comes before you (fewer GPUs, or a longer wait)"
        left = [(device, self.left_to[device.uuid]) for device in self._at.devices if device.uuid in self.left_to]
        return {device.uuid: f"{device.label} is left to {clean(rival.user)}, {why}" for device, rival in left}

    def _lacks_memory_only(self, job: JobRow) -> bool:
        """Return True if there are enough devices, and just not enough memory on them."""
        rooms = [r.device for r in self._occupancy.rooms.values() if r.jobs < self._limits.jobs_per_gpu]
        near = [*self._occupancy.whole, *(rooms if job.budget_bytes else ())]
        return not job.alone and sum(device.is_model(job.gpu_model) for device in near) >= job.gpus

    def _orders(self, job: JobRow, ranked: Sequence[DeviceView]) -> Iterator[Sequence[DeviceView]]:
        """Yield the orders to try: without the devices to avoid, with them, and the one that costs the least limits."""
        if job.avoid:
            yield _one_group_first(job, [d for d in ranked if d.uuid not in job.avoid])
        yield _one_group_first(job, ranked)
        yield sorted(ranked, key=lambda d: self._cost(job, d))

    def _affordable(self, job: JobRow, ranked: Iterable[DeviceView]) -> list[DeviceView]:
        """Return the first devices that the limits allow together; empty if they allow too few."""
        on_tag = self._occupancy.devices_of_tag
        gpus_left = self._occupancy.gpus_left - self._backfill.gpus_reserved
        tags_left = {tag: self._limits.tag_gpus[tag] - len(on_tag[tag]) for tag in job.tags if tag in on_tag}
        chosen: list[DeviceView] = []
        for device in ranked:
            new_to = [tag for tag in tags_left if device.uuid not in on_tag[tag]]
            whole = device.uuid not in self._occupancy.rooms
            if (whole and gpus_left <= 0) or any(tags_left[tag] <= 0 for tag in new_to):
                continue
            gpus_left -= whole
            for tag in new_to:
                tags_left[tag] -= 1
            chosen.append(device)
            if len(chosen) == job.gpus:
                return chosen
        return []

    def _cost(self, job: JobRow, device: DeviceView) -> int:
        """Return the number of limits that the device counts for, with this job."""
        on_tag = self._occupancy.devices_of_tag
        new_to = sum(tag in on_tag and device.uuid not in on_tag[tag] for tag in job.tags)
        return new_to + (device.uuid not in self._occupancy.rooms)

    def _unaffordable(self, job: JobRow, shared: int) -> Reason:
        """Return why the limits allow too few of the devices that would fit."""
        gpus_left = self._occupancy.gpus_left
        if shared + max(0, gpus_left - self._backfill.gpus_reserved) >= job.gpus:
            return self._full_tag(job, []) or Reason("tag", "waits for the limits of its tags (--tag-max-gpus)")
        if self._backfill.gpus_reserved and shared + gpus_left >= job.gpus:
            reservation = next(iter(self._backfill.reserved.values()))
            return Reason("devices", f"waits for {want(job)} within --max-gpus; {reservation}")
        return Reason("max_gpus", limit_reached(job, self._occupancy, self._limits))

    def _full_tag(self, job: JobRow, shared: Sequence[DeviceView]) -> Reason | None:
        """Return why a tag's limit alone leaves this job too few devices, even if others become free."""
        for tag in job.tags:
            if tag in self._occupancy.devices_of_tag:
                limit, in_use = self._limits.tag_gpus[tag], self._occupancy.devices_of_tag[tag]
                if limit - len(in_use) + sum(d.uuid in in_use for d in shared) < job.gpus:
                    text = f"{len(in_use)} of {limit} GPUs for the tag {tag} are in use (--tag-max-gpus {tag}=N)"
                    return Reason("tag", text)
        return None

    def _rank(
        self, job: JobRow, shared: list[DeviceView], whole: list[DeviceView], needs_larger: bool
    ) -> list[DeviceView]:
        """Sort the devices, the best first. Whole devices by preference; shared ones by best fit."""
        strategy, offer = self._limits.strategy, self._occupancy.offer_bytes
        if not job.mem_bytes and job.above_bytes and not needs_larger:
            whole = sorted(whole, key=lambda d: d.free_bytes, reverse=True)
        elif job.mem_bytes and strategy == "fill-first":
            # by capacity: the memory that idle boards have in use differs a little and means nothing
            whole = sorted(whole, key=lambda d: d.capacity_bytes)
        if strategy == "fill-first":
            ranked = sorted(shared, key=offer) + whole
        elif strategy == "round-robin":
            ranked = whole + sorted(shared, key=lambda d: self._occupancy.rooms[d.uuid].jobs)
        else:
            ranked = sorted((*shared, *whole), key=offer, reverse=True)
        return sorted(ranked, key=lambda d: d.uuid in job.avoid) if job.avoid else ranked

    def _needs_larger(self, job: JobRow) -> bool:
        """Return True if the job ran out of memory, and the box has devices that are certain to offer more."""
        return 0 < job.gpus <= len(self._certain_bytes) and 0 < job.above_bytes <= self._certain_bytes[job.gpus - 1]

    def _candidates(self, job: JobRow, needs_larger: bool, free: set[str]) -> list[DeviceView]:
        """Return the devices that could serve the job once they are empty, those that are soonest so first."""
        ours = self._occupancy.ours
        margin = self._at.threshold_bytes if needs_larger else 0
        fitting = [
            d
            for d in self._at.devices
            if d.is_present
            and _fits(d, job, needs_larger, d.free_bytes if d.uuid in free else d.capacity_bytes - margin)
        ]
        return sorted(fitting, key=lambda d: (d.uuid not in free, d.uuid not in ours))


def _fits(device: DeviceView, job: JobRow, needs_larger: bool, offer_bytes: int) -> bool:
    """Return True if a whole device that offers so much memory serves the job."""
    if needs_larger and offer_bytes <= job.above_bytes:
        return False
    return device.is_model(job.gpu_model) and (not job.mem_bytes or offer_bytes - MARGIN_BYTES >= job.mem_bytes)


def _is_kept_by_a_stranger(device: DeviceView, job: JobRow) -> bool:
    """Return True if somebody who holds no claim keeps the job from this device: nobody can leave it to us."""
    state = device.availability.state
    if job.alone and state is DeviceState.FREE and company(device.availability):
        return True
    return state is DeviceState.BUSY and not device.refused


def _one_group_first(job: JobRow, ranked: Sequence[DeviceView]) -> Sequence[DeviceView]:
    """Move the best group that can serve the whole of a job with several devices to the front."""
    if job.gpus == 1:
        return ranked
    sizes = Counter(device.group for device in ranked)
    best = next((d.group for d in ranked if d.group and sizes[d.group] >= job.gpus), "")
    return sorted(ranked, key=lambda d: d.group != best) if best else ranked
