"""Which devices a waiting job gets, while one plan is made. Decides for one job after the other; closes and stops none.

What is to be had only shrinks while a plan is made, so a job of the same shape as one that could not start cannot
start either: the plan of the first few jobs of each shape is the plan of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpusched.core.availability import DeviceState
from gpusched.core.model import MIB, Job
from gpusched.core.snapshot import ENDED_FACTS, MARGIN_BYTES, Claim, DeviceView, Reason, Snapshot, Start

LOOK_FRESH_S = 0.5  # a reading this young is a last look at a device that we are on already
_NAMED = 8  # devices that a reason names


@dataclass(slots=True)
class _Room:
    """What is left of one device that this queue holds or is about to."""

    device: DeviceView
    left_bytes: int
    jobs: int
    startable: bool  # claimed, and looked at since
    fresh: bool  # read a moment ago


class Board:
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
        barred = self._kept | stuck
        self._whole = [
            d
            for d in snapshot.devices
            if d.availability.state is DeviceState.FREE and not d.refused and d.uuid not in barred
        ]
        self._rooms = {d.uuid: room for d in snapshot.devices if (room := self._room(d)) is not None}
        self._order = {d.uuid: place for place, d in enumerate(snapshot.devices)}
        # what each device is certain to offer once it is free of others, the largest first
        certain = ((d.total_bytes or 0) - snapshot.threshold_bytes for d in snapshot.devices if _present(d))
        self._certain = sorted(certain, reverse=True)
        self._tagged = self._devices_by_tag()
        self._taken: set[str] = set()
        self._looks: set[str] = set()
        self._reserved: dict[str, str] = {}  # device -> why it is kept from jobs that would pass
        self._gpus_reserved = 0  # of max_gpus, for these
        self._failed: dict[tuple[object, ...], Reason] = {}  # of jobs of a shape after the first that waits
        self.passed: list[int] = []  # jobs that wait for devices while others may pass them

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
        if not device.residents or not device.held or any(not r.budget_bytes for r in device.residents):
            return None
        others_absent = known.count >= self._at.max_checks and known.settling_since is None
        if known.state is not DeviceState.RUNNING or not others_absent or known.foreign_bytes is None:
            return None
        used = known.foreign_bytes + sum(resident.counted_bytes for resident in device.residents)
        left = (device.total_bytes or 0) - used - MARGIN_BYTES
        fresh = self._at.now - known.at <= LOOK_FRESH_S
        return _Room(device, left, len(device.residents), True, fresh)

    # ---- one job ----

    def place(self, job: Job) -> Start | Claim | Reason:
        if self._at.closed_to_starts:
            return Reason("closed", self._at.closed_to_starts)
        if job.not_before > self._at.now:
            return Reason("back_off", f"tried again in {job.not_before - self._at.now:.0f} s")
        if job.gpus == 0:
            return self._place_cpu(job)
        if self._at.gpus_closed:
            return Reason("nvml", self._at.gpus_closed)
        known = self._failed.get(job.shape)
        if known is not None:
            return known
        found = self._place_gpu(job)
        if isinstance(found, Reason) and found.kind != "look":
            self._failed[job.shape] = Reason("behind", f"behind job {job.id}: {found.text}")
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
            if chosen.kind in ("devices", "max_gpus"):
                self._note_waiting(job, larger)
            return chosen
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
            if job.mem_bytes:
                left = _free_bytes(device) - job.mem_bytes - MARGIN_BYTES
                self._rooms[device.uuid] = _Room(device, left, 1, startable and device.held and device.looked, True)

    # ---- choosing ----

    def _choose(self, job: Job, larger: bool) -> list[DeviceView] | Reason:
        """The devices for this job, the best ones; or why there are not enough."""
        shared = [r.device for r in self._rooms.values() if self._joinable(r, job)]
        full_tag = self._full_tag(job, shared)
        if full_tag:
            return full_tag
        whole = [d for d in self._whole if self._serves(d, job, larger)]
        reserved = [d for d in (*shared, *whole) if d.uuid in self._reserved]
        if reserved:
            shared = [d for d in shared if d.uuid not in self._reserved]
            whole = [d for d in whole if d.uuid not in self._reserved]
        ranked = self._rank(job, shared, whole, larger)
        if len(ranked) < job.gpus:
            if reserved:
                return Reason("devices", f"waits for {_want(job)}; {self._reserved[reserved[0].uuid]}")
            return Reason("devices", self._shortage(job, len(ranked), larger))
        if job.avoid and sum(d.uuid not in job.avoid for d in ranked) >= job.gpus:
            ranked = [d for d in ranked if d.uuid not in job.avoid]
        if job.gpus > 1:
            ranked = self._one_group_first(job, ranked)
        chosen = self._affordable(job, ranked) or self._affordable(job, sorted(ranked, key=lambda d: self._cost(job, d)))
        return chosen or self._unaffordable(job, len(shared))

    def _affordable(self, job: Job, ranked: Iterable[DeviceView]) -> list[DeviceView]:
        """The first devices that the limits allow together; empty where they allow too few."""
        gpus_left = self._gpus_left
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
        if shared + max(0, self._gpus_left) >= job.gpus:
            return self._full_tag(job, []) or Reason("tag", "waits for the limits of its tags (--tag-max-gpus)")
        if self._gpus_reserved and shared + self._gpus_left + self._gpus_reserved >= job.gpus:
            kept = next(iter(self._reserved.values()))
            return Reason("devices", f"waits for {_want(job)} within --max-gpus; {kept}")
        return Reason("max_gpus", self._limit_text(job))

    def _full_tag(self, job: Job, shared: Sequence[DeviceView]) -> Reason | None:
        """Why a tag's limit alone leaves this job too few devices, whatever becomes free."""
        for tag in job.tags:
            if tag in self._tagged:
                limit, held = self._limits.tag_gpus[tag], self._tagged[tag]
                if limit - len(held) + sum(d.uuid in held for d in shared) < job.gpus:
                    text = f"{len(held)} of {limit} GPUs for the tag {tag} are in use (--tag-max-gpus {tag}=N)"
                    return Reason("tag", text)
        return None

    def _serves(self, device: DeviceView, job: Job, larger: bool) -> bool:
        if job.gpu_model and job.gpu_model.lower() not in device.name.lower():
            return False
        if larger and _free_bytes(device) <= job.above_bytes:
            return False
        return not job.mem_bytes or _free_bytes(device) - MARGIN_BYTES >= job.mem_bytes

    def _joinable(self, room: _Room, job: Job) -> bool:
        if not job.mem_bytes or room.left_bytes < job.mem_bytes or room.jobs >= self._limits.jobs_per_gpu:
            return False
        return not job.gpu_model or job.gpu_model.lower() in room.device.name.lower()

    def _rank(self, job: Job, shared: list[DeviceView], whole: list[DeviceView], larger: bool) -> list[DeviceView]:
        """Best first. Whole devices in order of preference; shared ones by best fit."""

        def left(device: DeviceView) -> int:
            room = self._rooms.get(device.uuid)
            return room.left_bytes if room else _free_bytes(device) - MARGIN_BYTES

        if job.mem_bytes:
            strategy = self._limits.strategy
            if strategy == "fill-first":
                # by the size of whole ones: what idle boards hold differs a little and says nothing
                ranked = sorted(shared, key=left) + sorted(whole, key=lambda d: d.total_bytes or 0)
            elif strategy == "round-robin":
                ranked = whole + sorted(shared, key=lambda d: (self._rooms[d.uuid].jobs, self._order[d.uuid]))
            else:
                ranked = sorted((*shared, *whole), key=left, reverse=True)
        elif self._limits.strategy == "memory-aware" or (job.above_bytes and not larger):
            ranked = sorted(whole, key=_free_bytes, reverse=True)
        else:
            ranked = whole
        return sorted(ranked, key=lambda d: d.uuid in job.avoid) if job.avoid else ranked

    def _one_group_first(self, job: Job, ranked: list[DeviceView]) -> list[DeviceView]:
        """Move the best group that can serve the whole job to the front."""
        sizes: dict[str, int] = {}
        for device in ranked:
            if device.group:
                sizes[device.group] = sizes.get(device.group, 0) + 1
        best = next((d.group for d in ranked if sizes.get(d.group, 0) >= job.gpus), "")
        return sorted(ranked, key=lambda d: d.group != best) if best else ranked

    def _waits_for_larger(self, job: Job) -> bool:
        """Whether this job ran out of memory, and the box has devices that are certain to have more free."""
        return 0 < job.gpus <= len(self._certain) and 0 < job.above_bytes <= self._certain[job.gpus - 1]

    # ---- passing ----

    def _note_waiting(self, job: Job, larger: bool) -> None:
        """Jobs behind may pass this one for a while; after that, devices are kept for it."""
        candidates = [d for d in self._candidates(job, larger) if d.uuid not in self._reserved]
        if job.gpus > min(self._limits.max_gpus, len(candidates)):
            return  # as things stand, keeping any would not help it
        self.passed.append(job.id)
        since = self._at.waited_since.get(job.id, self._at.now)
        if self._at.now - since < self._limits.max_bypass_s:
            return
        text = f"kept for job {job.id}, which has waited {_minutes(self._at.now - since)} for {_want(job)}"
        free = {d.uuid for d in self._whole}
        for device in candidates[: job.gpus]:
            self._reserved[device.uuid] = f"{device.label} is {text}"
            if device.uuid in free:  # those with jobs of ours count already; others' may be long in coming
                self._gpus_left -= 1
                self._gpus_reserved += 1

    def _candidates(self, job: Job, larger: bool) -> list[DeviceView]:
        """The devices that could serve the job once they are empty, those that are soonest so first."""
        free = {d.uuid for d in self._whole}
        fitting = [d for d in self._at.devices if _present(d) and self._could_serve(d, job, larger)]
        fitting = [d for d in fitting if d.uuid not in free or self._serves(d, job, larger)]
        return sorted(fitting, key=lambda d: (d.uuid not in free, d.uuid not in self._kept))

    def _could_serve(self, device: DeviceView, job: Job, larger: bool) -> bool:
        if job.gpu_model and job.gpu_model.lower() not in device.name.lower():
            return False
        total = device.total_bytes or 0
        if larger and total - self._at.threshold_bytes <= job.above_bytes:
            return False
        return not job.mem_bytes or total - MARGIN_BYTES >= job.mem_bytes

    # ---- what remains ----

    def looks(self) -> tuple[str, ...]:
        """Devices of ours to read once more before a job joins those on them."""
        return tuple(sorted(self._looks))

    def unused(self) -> list[str]:
        """Held devices that neither run, nor settle, nor are about to start: others may have them."""
        mine = self._kept | self._taken
        return [d.uuid for d in self._at.devices if d.held and d.uuid not in mine]

    # ---- words ----

    def _limit_text(self, job: Job) -> str:
        if job.gpus > self._limits.max_gpus:
            return f"needs {job.gpus} GPUs, --max-gpus is {self._limits.max_gpus}"
        busy = len(self._kept) + len(self._taken)
        return f"{busy} of {self._limits.max_gpus} GPUs that this queue may hold are in use (--max-gpus)"

    def _shortage(self, job: Job, fitting: int, larger: bool) -> str:
        room = f" with more than {job.above_bytes // MIB} MiB free, too little the last time" if larger else ""
        others = [d for d in self._at.devices if d.uuid not in self._taken]
        notes = [f"{d.label}: {self._hurdle(d, job)}" for d in others[:_NAMED]]
        if len(others) > _NAMED:
            notes.append(f"{len(others) - _NAMED} more")
        have = f", has {fitting}" if job.gpus > 1 else ""
        return f"waits for {_want(job)}{room}{have} ({'; '.join(notes) or 'none is allowed'})"

    def _hurdle(self, device: DeviceView, job: Job) -> str:
        if job.gpu_model and job.gpu_model.lower() not in device.name.lower():
            return f"is no {job.gpu_model}"
        room = self._rooms.get(device.uuid)
        if job.mem_bytes and room is not None:
            if room.jobs >= self._limits.jobs_per_gpu:
                return f"{room.jobs} jobs share it (--max-jobs-per-gpu)"
            return f"{max(0, room.left_bytes) // MIB} MiB left beside {room.jobs} job(s)"
        if job.mem_bytes and device.residents:
            return self._not_open(device)
        if job.mem_bytes and device.availability.state is DeviceState.FREE:
            return f"free, but only {max(0, _free_bytes(device) - MARGIN_BYTES) // MIB} MiB to give"
        return device.refused or device.availability.why

    def _not_open(self, device: DeviceView) -> str:
        if any(not resident.budget_bytes for resident in device.residents):
            return "runs a job that has it alone (it states no mem)"
        if not device.held:
            return "takes no newcomer until the jobs of an earlier dispatcher on it have ended"
        return f"takes no newcomer now: {device.availability.why}"


def _want(job: Job) -> str:
    model = f"{job.gpu_model} " if job.gpu_model else ""
    mem = f" with {job.mem_bytes // MIB} MiB" if job.mem_bytes else ""
    return (f"a {model}GPU" if job.gpus == 1 else f"{job.gpus} {model}GPUs") + mem


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _present(device: DeviceView) -> bool:
    return device.availability.state not in (DeviceState.LOST, DeviceState.SET_ASIDE)


def _free_bytes(device: DeviceView) -> int:
    foreign = device.availability.foreign_bytes
    return 0 if foreign is None else (device.total_bytes or 0) - foreign
