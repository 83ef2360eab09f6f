"""Which devices a waiting job gets, while one plan is made. Decides for one job after the other; closes and stops none.

What is to be had only shrinks while a plan is made, so a job of the same shape as one that could not start cannot
start either: the plan of the first few jobs of each shape is the plan of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from gpusched.core.jobs.lifecycle import is_backing_off
from gpusched.core.model import Job
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.backfill import Backfill
from gpusched.core.plan.snapshot import ENDED_FACTS, MARGIN_BYTES, Claim, DeviceView, Reason, Snapshot, Start
from gpusched.core.plan.wait_reason import free_bytes, is_model, is_present, limit_reached, shortage, want

LOOK_FRESH_S = 0.5  # a reading this young is a last look at a device that we are on already


@dataclass(slots=True)
class _Room:
    """What is left of one device that this queue holds or is about to."""

    device: DeviceView
    left_bytes: int
    jobs: int
    startable: bool  # claimed, and looked at since
    fresh: bool  # read a moment ago


class Occupancy:
    """What is still to be had; private to make_plan."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._at = snapshot
        self._limits = snapshot.limits
        open_attempts = [a for a in snapshot.attempts if a.fact not in ENDED_FACTS]
        on_jobs = {uuid for attempt in open_attempts for uuid in attempt.devices}
        settling = {d.uuid for d in snapshot.devices if d.held and d.availability.state is DeviceState.SETTLING}
        # the shepherd of an attempt that cannot be ended keeps its claim: ours goes, so that nothing starts beside it
        stuck = {u for a in snapshot.attempts if a.outcome and a.outcome.cause == "unkillable" for u in a.devices}
        self._kept = on_jobs | (settling - stuck)
        self._gpus_left = self._limits.max_gpus - len(self._kept)
        self._cpu_left = self._limits.cpu_jobs - sum(not a.devices for a in open_attempts)
        free = [d for d in snapshot.devices if d.availability.state is DeviceState.FREE and not d.refused]
        self._whole = [d for d in free if d.uuid not in self._kept | stuck]
        self._rooms = {d.uuid: room for d in snapshot.devices if (room := self._room(d)) is not None}
        # what each device is certain to offer once it is free of others, the largest first
        certain = (d.capacity_bytes - snapshot.threshold_bytes for d in snapshot.devices if is_present(d))
        self._certain = sorted(certain, reverse=True)
        self._tagged = self._devices_by_tag()
        self._taken, self._looks = set[str](), set[str]()
        self._failed: dict[tuple[object, ...], Reason] = {}  # of jobs of a shape after the first that waits
        self.bypass = Backfill(snapshot)

    def _devices_by_tag(self) -> dict[str, set[str]]:
        tagged: dict[str, set[str]] = {tag: set() for tag in self._limits.tag_gpus}
        for attempt in self._at.attempts:
            if attempt.fact not in ENDED_FACTS:
                for tag in attempt.tags:
                    if tag in tagged:
                        tagged[tag].update(attempt.devices)
        return tagged

    def _room(self, device: DeviceView) -> _Room | None:
        """What a job with a budget may still have of a device that jobs of ours share; None: it is not open."""
        known = device.availability
        if device.alone or not device.residents or not device.held or any(not r.budget_bytes for r in device.residents):
            return None
        others_absent = known.count >= self._at.max_checks and known.settling_since is None
        if known.state is not DeviceState.RUNNING or not others_absent or known.foreign_bytes is None:
            return None
        used = known.foreign_bytes + sum(resident.counted_bytes for resident in device.residents)
        left = device.capacity_bytes - used - MARGIN_BYTES
        fresh = device.looked_again or abs(self._at.now - known.at) <= LOOK_FRESH_S  # a clock can be set back
        return _Room(device, left, len(device.residents), True, fresh)

    # ---- one job ----

    def place(self, job: Job) -> Start | Claim | Reason:
        if self._at.closed_to_starts:
            return Reason("closed", self._at.closed_to_starts)
        if is_backing_off(job.not_before, self._at.now):
            return Reason("back_off", f"tried again in {job.not_before - self._at.now:.0f} s")
        if job.gpus == 0:
            return self._place_cpu(job)
        if self._at.gpus_closed:
            return Reason("nvml", self._at.gpus_closed)
        # jobs of one shape fit the same devices: if the first cannot start now, none can
        tags = tuple(tag for tag in job.tags if tag in self._tagged)
        shape = (job.gpus, job.mem_bytes, job.gpu_model, job.above_bytes, tags)
        known = self._failed.get(shape)
        if known is not None:
            return known
        found = self._place_gpu(job)
        if isinstance(found, Reason) and found.kind != "look":
            self._failed[shape] = Reason("behind", f"behind job {job.id}: {found.text}")
        return found

    def _place_cpu(self, job: Job) -> Start | Reason:
        if self._cpu_left <= 0:
            return Reason("cpu_jobs", f"{self._limits.cpu_jobs} CPU jobs run already (--cpu-jobs)")
        self._cpu_left -= 1
        return Start(job.id, ())

    def _place_gpu(self, job: Job) -> Start | Claim | Reason:
        larger = self._waits_for_larger(job)
        chosen = self._choose(job, larger)
        if isinstance(chosen, Reason):
            if chosen.kind not in ("devices", "max_gpus"):
                return chosen
            free = {d.uuid for d in self._whole}
            kept = self.bypass.keep(job, self._candidates(job, larger, free), free, self._ours)
            return Reason(chosen.kind, f"{chosen.text}; kept for it: {kept}") if kept else chosen
        self.bypass.note_placed()
        for tag in job.tags:
            if tag in self._tagged:
                self._tagged[tag].update(d.uuid for d in chosen)
        fresh_ones = [d for d in chosen if d.uuid not in self._rooms]
        unclaimed = tuple(d.uuid for d in fresh_ones if not d.held)
        unseen = [d for d in fresh_ones if d.held and not d.looked]
        pending = [self._rooms[d.uuid].device for d in chosen if d.uuid in self._rooms]
        stale = [d for d in pending if not self._rooms[d.uuid].fresh and self._rooms[d.uuid].startable]
        waits = [d for d in pending if not self._rooms[d.uuid].startable]
        self._occupy(job, chosen, startable=not unclaimed and not unseen)
        if unclaimed:
            return Claim(job.id, unclaimed)
        if stale:
            self._looks.update(d.uuid for d in stale)
        if unseen or stale or waits:
            names = ", ".join(d.label for d in (*unseen, *stale, *waits))
            return Reason("look", f"looking once more at {names}")
        return Start(job.id, tuple(d.uuid for d in chosen))

    def _occupy(self, job: Job, chosen: Iterable[DeviceView], *, startable: bool) -> None:
        """Count the job on its devices; one with a budget leaves room for others."""
        for device in chosen:
            room = self._rooms.get(device.uuid)
            if room is not None:
                room.left_bytes -= job.mem_bytes
                room.jobs += 1
                continue
            self._taken.add(device.uuid)
            self._gpus_left -= 1
            self._whole.remove(device)
            if job.mem_bytes and not device.alone:
                left = free_bytes(device) - job.mem_bytes - MARGIN_BYTES
                self._rooms[device.uuid] = _Room(device, left, 1, startable and device.held and device.looked, True)

    # ---- choosing ----

    def _choose(self, job: Job, larger: bool) -> list[DeviceView] | Reason:
        """The devices for this job, the best ones; or why there are not enough."""
        shared = [r.device for r in self._rooms.values() if self._is_open(r, job)]
        full_tag = self._full_tag(job, shared)
        if full_tag:
            return full_tag
        whole = [d for d in self._whole if _fits(d, job, larger, free_bytes(d))]
        kept = [self.bypass.kept[d.uuid] for d in (*shared, *whole) if d.uuid in self.bypass.kept]
        if kept:
            shared = [d for d in shared if d.uuid not in self.bypass.kept]
            whole = [d for d in whole if d.uuid not in self.bypass.kept]
        ranked = self._rank(job, shared, whole, larger)
        if len(ranked) < job.gpus:
            if kept:
                return Reason("devices", f"waits for {want(job)}; {kept[0]}")
            return Reason("devices", self._shortage(job, len(ranked), larger))
        for order in self._orders(job, ranked):
            chosen = self._affordable(job, order)
            if chosen:
                return chosen
        return self._unaffordable(job, len(shared))

    def _orders(self, job: Job, ranked: Sequence[DeviceView]) -> Iterator[Sequence[DeviceView]]:
        """What to try, the best first: without the devices to avoid, with them, and those that cost least first."""
        if job.avoid:
            yield _one_group_first(job, [d for d in ranked if d.uuid not in job.avoid])
        yield _one_group_first(job, ranked)
        yield sorted(ranked, key=lambda d: self._cost(job, d))

    def _affordable(self, job: Job, ranked: Iterable[DeviceView]) -> list[DeviceView]:
        """The first devices that the limits allow together; empty where they allow too few."""
        gpus_left = self._gpus_left - self.bypass.gpus_kept
        tags = {tag: self._limits.tag_gpus[tag] - len(self._tagged[tag]) for tag in job.tags if tag in self._tagged}
        chosen: list[DeviceView] = []
        for device in ranked:
            new_to = [tag for tag in tags if device.uuid not in self._tagged[tag]]
            whole = device.uuid not in self._rooms
            if (whole and gpus_left <= 0) or any(tags[tag] <= 0 for tag in new_to):
                continue
            gpus_left -= whole
            for tag in new_to:
                tags[tag] -= 1
            chosen.append(device)
            if len(chosen) == job.gpus:
                return chosen
        return []

    def _cost(self, job: Job, device: DeviceView) -> int:
        """How many limits the device counts for, with this job."""
        new_to = sum(tag in self._tagged and device.uuid not in self._tagged[tag] for tag in job.tags)
        return new_to + (device.uuid not in self._rooms)

    def _unaffordable(self, job: Job, shared: int) -> Reason:
        """Why the limits allow too few of the devices that there are."""
        if shared + max(0, self._gpus_left - self.bypass.gpus_kept) >= job.gpus:
            return self._full_tag(job, []) or Reason("tag", "waits for the limits of its tags (--tag-max-gpus)")
        if self.bypass.gpus_kept and shared + self._gpus_left >= job.gpus:
            kept = next(iter(self.bypass.kept.values()))
            return Reason("devices", f"waits for {want(job)} within --max-gpus; {kept}")
        return Reason("max_gpus", limit_reached(job, len(self._ours), self._limits))

    def _full_tag(self, job: Job, shared: Sequence[DeviceView]) -> Reason | None:
        """Why a tag's limit alone leaves this job too few devices, whatever becomes free."""
        for tag in job.tags:
            if tag in self._tagged:
                limit, held = self._limits.tag_gpus[tag], self._tagged[tag]
                if limit - len(held) + sum(d.uuid in held for d in shared) < job.gpus:
                    text = f"{len(held)} of {limit} GPUs for the tag {tag} are in use (--tag-max-gpus {tag}=N)"
                    return Reason("tag", text)
        return None

    def _is_open(self, room: _Room, job: Job) -> bool:
        fits = job.mem_bytes and room.left_bytes >= job.mem_bytes and room.jobs < self._limits.jobs_per_gpu
        return bool(fits) and is_model(room.device, job.gpu_model)

    def _rank(self, job: Job, shared: list[DeviceView], whole: list[DeviceView], larger: bool) -> list[DeviceView]:
        """Best first. Whole devices in order of preference; shared ones by best fit."""

        def left(device: DeviceView) -> int:
            room = self._rooms.get(device.uuid)
            return room.left_bytes if room else free_bytes(device) - MARGIN_BYTES

        if job.mem_bytes:
            strategy = self._limits.strategy
            if strategy == "fill-first":
                # by the size of whole ones: what idle boards hold differs a little and says nothing
                ranked = sorted(shared, key=left) + sorted(whole, key=lambda d: d.capacity_bytes)
            elif strategy == "round-robin":
                ranked = whole + sorted(shared, key=lambda d: self._rooms[d.uuid].jobs)
            else:
                ranked = sorted((*shared, *whole), key=left, reverse=True)
        elif self._limits.strategy == "memory-aware" or (job.above_bytes and not larger):
            ranked = sorted(whole, key=free_bytes, reverse=True)
        else:
            ranked = whole
        return sorted(ranked, key=lambda d: d.uuid in job.avoid) if job.avoid else ranked

    def _waits_for_larger(self, job: Job) -> bool:
        """Whether this job ran out of memory, and the box has devices that are certain to have more free."""
        return 0 < job.gpus <= len(self._certain) and 0 < job.above_bytes <= self._certain[job.gpus - 1]

    def _candidates(self, job: Job, larger: bool, free: Set[str]) -> list[DeviceView]:
        """The devices that could serve the job once they are empty, those that are soonest so first."""
        ours = self._ours
        certain = self._at.threshold_bytes if larger else 0
        fitting = [
            d
            for d in self._at.devices
            if is_present(d) and _fits(d, job, larger, free_bytes(d) if d.uuid in free else d.capacity_bytes - certain)
        ]
        return sorted(fitting, key=lambda d: (d.uuid not in free, d.uuid not in ours))

    # ---- what remains ----

    @property
    def _ours(self) -> set[str]:
        """Devices that run, settle, or are about to start for this queue."""
        return self._kept | self._taken

    def looks(self) -> tuple[str, ...]:
        """Devices of ours to read once more before a job joins those on them."""
        return tuple(sorted(self._looks))

    def unused(self) -> list[str]:
        """Held devices that neither run, nor settle, nor are about to start: others may have them."""
        mine = self._ours
        return [d.uuid for d in self._at.devices if d.held and d.uuid not in mine]

    def _shortage(self, job: Job, fitting: int, larger: bool) -> str:
        rooms = {uuid: (room.left_bytes, room.jobs) for uuid, room in self._rooms.items()}
        return shortage(job, fitting, larger, self._at.devices, rooms, self._taken, self._limits)


def _fits(device: DeviceView, job: Job, larger: bool, offer_bytes: int) -> bool:
    """Whether a whole device that offers so much serves the job."""
    if larger and offer_bytes <= job.above_bytes:
        return False
    return is_model(device, job.gpu_model) and (not job.mem_bytes or offer_bytes - MARGIN_BYTES >= job.mem_bytes)


def _one_group_first(job: Job, ranked: Sequence[DeviceView]) -> Sequence[DeviceView]:
    """Move the best group that can serve the whole of a job with several devices to the front."""
    if job.gpus == 1:
        return ranked
    sizes = Counter(device.group for device in ranked)
    best = next((d.group for d in ranked if d.group and sizes[d.group] >= job.gpus), "")
    return sorted(ranked, key=lambda d: d.group != best) if best else ranked
