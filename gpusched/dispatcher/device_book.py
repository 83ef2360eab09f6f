"""The devices of one dispatcher: what is known of each, which claims it holds, when to look again.

Folds readings with core/availability and takes claims as it is told. Decides nothing, knows no job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from gpusched.core.model import Device, Reading, Sample, nameless_uuid
from gpusched.core.plan import availability, observe
from gpusched.core.plan.availability import Availability, Criteria, DeviceState
from gpusched.core.plan.snapshot import DeviceView, Resident
from gpusched.host.gpus.claims import Claims
from gpusched.host.gpus.device_source import DeviceSource

Ours = Callable[[Sample], Set[int]]


@dataclass(slots=True)
class _Entry:
    device: Device
    availability: Availability
    claim: int | None = None  # descriptor
    claimed_at: float = 0.0
    asked_at: float = 0.0  # of the newest sample that was folded
    ignore_until: float = 0.0  # samples asked for before this moment describe the past
    look_wanted_at: float | None = None  # when a last look at it was asked for, until the next poll
    look_at: float | None = None  # when a settling device wants its next look
    refused: str = ""
    missing: bool = False


class DeviceBook:
    """`allowed` is the order of preference, by UUID. The caller says when time passes and who is on which device."""

    def __init__(
        self, source: DeviceSource, claims: Claims, queue: str, allowed: Iterable[str], first: Reading
    ) -> None:
        self.source = source
        self.claims = claims
        self.queue = queue
        self.criteria = Criteria()
        self.box: dict[str, Device] = {d.uuid: d for d in first.devices}
        self._at_first = frozenset(self.box)
        self.error = ""  # why the source as a whole does not answer
        self.degraded = ""  # why indices are not safe in CUDA_VISIBLE_DEVICES now; empty when they are
        self.since = first.at
        self._entries: dict[str, _Entry] = {}
        self.allow(allowed)

    def allow(self, uuids: Iterable[str]) -> None:
        """Set the allowed devices and their order; what is known of a device that stays is kept."""
        before = self._entries
        self._entries = {uuid: before.get(uuid) or _Entry(self.box[uuid], Availability(uuid)) for uuid in uuids}
        for uuid in before.keys() - self._entries.keys():
            self._drop_claim(before[uuid])

    # ---- readings ----

    def ask(self, now: float, *, poll: bool) -> None:
        """Put the questions that are due: all devices at a poll, settling ones in between."""
        if poll:
            self.source.request(None, now)
            return
        due = [uuid for uuid, e in self._entries.items() if e.look_at is not None and e.look_at <= now]
        if due:
            for uuid in due:
                self._entries[uuid].look_at = None
            self.source.request(frozenset(due), now)

    def take_in(self, now: float, ours: Ours, occupied: Set[str]) -> list[Reading]:
        """Fold what the source has to say; the readings, for whoever else wants them."""
        readings = self.source.poll(now)
        for reading in readings:
            if reading.error:
                self._silence(reading.error, now)
                continue
            if self.error:
                self.error = ""
            self._fold(reading, ours, occupied)
        return readings

    def _fold(self, reading: Reading, ours: Ours, occupied: Set[str]) -> None:
        for device in reading.devices:
            if device.uuid not in self.box:
                self._name(device)
            self.box[device.uuid] = device
        seen = set()
        for sample in reading.samples:
            entry = self._entries.get(sample.uuid)
            if entry is None:
                continue
            seen.add(sample.uuid)
            if reading.asked_at < entry.ignore_until:
                continue
            entry.device = self.box.get(sample.uuid, entry.device)
            entry.missing = False
            entry.asked_at = reading.asked_at
            if reading.complete:
                entry.refused, entry.look_wanted_at = "", None
            entry.availability = availability.fold(
                entry.availability,
                entry.device,
                sample,
                ours=ours(sample),
                occupied=sample.uuid in occupied,
                polled=reading.complete,
                criteria=self.criteria,
            )
            since = entry.availability.settling_since
            entry.look_at = None
            if since is not None:
                entry.look_at = reading.at + availability.settle_pause_s(reading.at - since)
        if reading.complete:
            listed = {device.uuid for device in reading.devices}
            for uuid, entry in self._entries.items():
                if uuid not in listed and uuid not in seen:
                    entry.missing = True
                    entry.availability = availability.vanish(entry.availability, reading.at)
            self.box = {uuid: d for uuid, d in self.box.items() if uuid in listed}
        self.degraded = self._find_degraded()

    def _name(self, device: Device) -> None:
        """A GPU that told no UUID when we began tells it now: it takes its place in the order."""
        nameless = nameless_uuid(device.index)
        if nameless not in self._entries or device.uuid in self._at_first or device.is_mig:
            return
        named = _Entry(device, Availability(device.uuid))
        entries = self._entries.items()
        self._entries = dict((device.uuid, named) if uuid == nameless else (uuid, entry) for uuid, entry in entries)

    def _silence(self, error: str, now: float) -> None:
        self.error = error
        for uuid, entry in self._entries.items():
            entry.look_at = None
            entry.availability = Availability(uuid, why=error, since=now)

    def next_look(self) -> float | None:
        """When ask() or take_in() have something to do before the next poll."""
        looks = [e.look_at for e in self._entries.values() if e.look_at is not None]
        deadline = self.source.deadline()
        if deadline is not None:
            looks.append(deadline)
        return min(looks) if looks else None

    def settle(self, uuids: Iterable[str], now: float, occupied: Set[str]) -> None:
        """An attempt of ours has left these devices: look at once, and again until their memory is back."""
        for uuid in uuids:
            entry = self._entries.get(uuid)
            if entry is not None and not self.error:
                entry.availability = availability.settle(entry.availability, now, occupied=uuid in occupied)
                entry.ignore_until = now
                entry.look_at = now

    def is_lost(self, uuid: str) -> bool:
        entry = self._entries.get(uuid)
        return entry is not None and entry.availability.state is DeviceState.LOST

    def is_read_since_settling(self, uuid: str) -> bool:
        """Whether the device was read since settle() (or cannot be): what its state says is not older than that."""
        entry = self._entries.get(uuid)
        return entry is None or bool(self.error) or entry.missing or entry.asked_at >= entry.ignore_until

    def clock_went_back(self, now: float) -> None:
        """Samples count again from now on, and what is settling begins to."""
        for entry in self._entries.values():
            entry.ignore_until, entry.asked_at = now, 0.0
            entry.claimed_at = min(entry.claimed_at, now)
            entry.look_wanted_at = None
            if entry.look_at is not None:
                entry.look_at = now
            if entry.availability.settling_since is not None:
                entry.availability = replace(entry.availability, settling_since=now)

    # ---- claims ----

    def claim(self, uuids: Iterable[str], now: float) -> bool:
        """Take the claims of all these devices in UUID order, or of none; then ask for one more look at them."""
        taken: list[tuple[_Entry, int]] = []
        for uuid in sorted(uuids):
            entry = self._entries[uuid]
            fd = self.claims.try_acquire(uuid, self.queue, now)
            if fd is None:
                holder = self.claims.holder(uuid)
                entry.refused = observe.claimed_by(holder.user if holder else None)
                for _, other in taken:
                    os.close(other)
                return False
            taken.append((entry, fd))
        for entry, fd in taken:
            entry.claim, entry.claimed_at = fd, now
            entry.ignore_until = max(entry.ignore_until, now)
        self.source.request(frozenset(entry.device.uuid for entry, _ in taken), now)
        return True

    def look(self, uuids: Collection[str], now: float) -> None:
        """Read these devices once more, at once."""
        for uuid in uuids:
            self._entries[uuid].look_wanted_at = now
        self.source.request(frozenset(uuids), now)

    def release(self, uuid: str) -> None:
        self._drop_claim(self._entries[uuid])

    def _drop_claim(self, entry: _Entry) -> None:
        if entry.claim is not None:
            os.close(entry.claim)
            entry.claim = None

    def release_all(self) -> None:
        for entry in self._entries.values():
            self._drop_claim(entry)

    def descriptors(self, uuids: Iterable[str]) -> list[int]:
        found = [self._entries[uuid].claim for uuid in uuids]
        return [fd for fd in found if fd is not None]

    # ---- views ----

    def views(self, residents: Mapping[str, tuple[Resident, ...]]) -> tuple[DeviceView, ...]:
        """The allowed devices as the plan sees them, in order of preference; `residents` are the jobs on them."""
        return tuple(
            observe.device_view(
                e.device,
                e.availability,
                held=e.claim is not None,
                looked=e.claim is not None and e.asked_at >= e.claimed_at,
                looked_again=e.look_wanted_at is not None and e.asked_at >= e.look_wanted_at,
                refused=e.refused,
                residents=residents.get(uuid, ()),
            )
            for uuid, e in self._entries.items()
        )

    def known(self) -> tuple[Device, ...]:
        """Every device of the box, and the allowed ones that are missing just now."""
        return tuple({**{e.device.uuid: e.device for e in self._entries.values()}, **self.box}.values())

    def device(self, uuid: str) -> Device:
        return self._entries[uuid].device

    def availability(self, uuid: str) -> Availability:
        return self._entries[uuid].availability

    def states(self) -> Mapping[str, DeviceState]:
        return {uuid: e.availability.state for uuid, e in self._entries.items()}

    def devices(self) -> list[Device]:
        return [e.device for e in self._entries.values()]

    def _find_degraded(self) -> str:
        if any(d.is_mig or d.mig_parent for d in self.box.values()):
            return "MIG is in the box"
        for entry in self._entries.values():
            if entry.missing or entry.availability.state is DeviceState.LOST:
                return f"GPU {entry.device.index} ({entry.device.uuid}) is lost or missing"
        return ""

    def note_occupied(self, uuids: Set[str], now: float) -> None:
        """An attempt has just begun on these devices: they run from now on, whatever the last sample said."""
        for uuid in uuids:
            entry = self._entries[uuid]
            entry.availability = replace(
                entry.availability, state=DeviceState.RUNNING, why="runs a job of this queue", since=now
            )
