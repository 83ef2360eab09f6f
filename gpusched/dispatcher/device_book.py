"""The devices of one dispatcher: the readings of each, the claims that it holds, when to look again.

Folds readings with core/plan/availability and takes claims when asked to. Decides nothing, knows no job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, replace

from gpusched.common.errors import GpuschedError
from gpusched.core.model import Device, Reading, Sample, nameless_uuid
from gpusched.core.plan import availability, observe
from gpusched.core.plan.availability import RUNS_OURS, Availability, Criteria, DeviceState, OwnUse
from gpusched.core.plan.snapshot import DeviceView, Resident
from gpusched.dispatcher.timers import Moment, Timer
from gpusched.host.gpus.claims import Claims, HeldClaim
from gpusched.host.gpus.device_source import DeviceSource

Ours = Callable[[Sample], OwnUse]
CLAIMED_AGAIN_S = 0.5  # a claim that somebody else has is tried again after this time
UNUSABLE_AGAIN_S = 30.0  # and a lock file that cannot be used after this one
_NEVER_S = float("-inf")
UNSURE_POLLS = 2  # after a change of the set of GPUs CUDA and NVML may number them differently for so long
SILENT_S = 40.0  # a poll without an answer for so long: longer than the source itself waits for a first answer


@dataclass(slots=True)
class DeviceEntry:
    """One allowed device. Moments are monotonic seconds."""

    device: Device
    availability: Availability
    claim: HeldClaim | None = None
    claimed_s: float = 0.0
    asked_s: float = _NEVER_S  # when the newest sample that counts was asked for
    ignore_before_s: float = _NEVER_S  # samples asked for before this moment describe the past
    look_wanted_s: float | None = None  # when one more look at it was asked for, until the next poll
    look_due_s: float | None = None  # when a settling device wants its next look
    refused: str = ""  # why it cannot be claimed
    holder: str = ""  # who else was seen to have claimed it
    refused_until_s: float = _NEVER_S  # so long at least; then the next poll lifts it
    is_missing: bool = False
    lost_s: float = _NEVER_S  # when it was last seen lost or missing
    barred: str = ""  # why no job starts on it although it is free
    on_trial: bool = False  # it takes one job at a time

    @property
    def title(self) -> str:
        """The device as an event calls it."""
        return f"GPU {self.device.index} ({self.device.uuid}, {self.device.bus_id})"

    def fold(self, sample: Sample, reading: Reading, *, ours: Ours, criteria: Criteria) -> None:
        """Take in one sample of this device."""
        self.is_missing = False
        self.asked_s = reading.asked_at
        if reading.complete:
            self.look_wanted_s = None
            if reading.asked_at >= self.refused_until_s:
                self.refused = ""
        self.availability = availability.fold(
            self.availability,
            self.device,
            sample,
            ours(sample),
            polled=reading.complete,
            criteria=criteria,
            now=reading.at,
        )
        if self.availability.state is DeviceState.LOST:
            self.lost_s = reading.at
        since_s = self.availability.settling_since
        self.look_due_s = None if since_s is None else reading.at + availability.settle_pause_s(reading.at - since_s)

    def settle(self, now: Moment, *, occupied: bool) -> None:
        """Note that an attempt of ours has left: look at once, and again until its memory is back."""
        self.availability = availability.settle(
            self.availability, now.at, occupied=occupied, settling_since=now.monotonic_s
        )
        self.ignore_before_s = self.look_due_s = now.monotonic_s

    def refuse(self, why: str, until_s: float) -> None:
        """Note why nothing can start here, and for how long at least."""
        self.refused, self.refused_until_s = why, until_s

    def acquire(self, claims: Claims, queue: str, now: Moment) -> HeldClaim | None:
        """Take the claim of the device, or note why it is refused."""
        uuid = self.device.uuid
        try:
            claim = claims.try_acquire(uuid, queue, now.at)
        except GpuschedError as error:
            self.refuse(str(error).partition("\n")[0], now.monotonic_s + UNUSABLE_AGAIN_S)
            return None
        if claim is None:
            holder = claims.holder(uuid)
            self.refuse(observe.claimed_by(holder.user if holder else None), now.monotonic_s + CLAIMED_AGAIN_S)
        return claim

    def verify_claim(self, now: Moment) -> list[int]:
        """Keep the claim where other users look for it; return the new descriptors if it was renewed."""
        if self.claim is None:
            return []
        count = len(self.claim.fds)
        self.refuse(self.claim.verify(), now.monotonic_s + CLAIMED_AGAIN_S)
        return self.claim.fds[count:]

    def release(self) -> None:
        """Give the claim back, if it is held."""
        if self.claim is not None:
            self.claim.close()
            self.claim = None

    def view(self, residents: tuple[Resident, ...]) -> DeviceView:
        """Return the device as the plan sees it; `residents` are our jobs on it."""
        view = observe.device_view(self.device, availability.bar(self.availability, self.barred))
        return replace(
            view,
            alone=view.alone or self.on_trial,
            held=self.claim is not None,
            looked=self.claim is not None and self.asked_s >= self.claimed_s,
            looked_again=self.look_wanted_s is not None and self.asked_s >= self.look_wanted_s,
            refused=self.refused or self.holder,
            residents=residents,
        )


class DeviceBook:
    """The caller says when time passes and who is on which device."""

    def __init__(self, source: DeviceSource, claims: Claims, queue: str, first: Reading) -> None:
        """`first` is a complete reading of `source`. No device is allowed before configure()."""
        self.source, self.poll = source, Timer()
        self.criteria = Criteria()
        self.error = ""  # why the source as a whole does not answer
        self._unanswered_s: float | None = None  # since when a poll waits for its answer
        self.degraded = ""  # why indices are not safe in CUDA_VISIBLE_DEVICES now; empty when they are
        self.claims, self.queue = claims, queue
        self._box: dict[str, Device] = {d.uuid: d for d in first.devices}
        self._at_first = frozenset(self._box)
        self._lost = set[str]()  # of the whole box, at the newest reading
        self._present = frozenset(self._box)  # of the whole box, without those that are lost
        self._unsure_polls = 0  # for which the set of GPUs counts as just changed
        self.changed_s = _NEVER_S  # when that set has changed
        self.entries: dict[str, DeviceEntry] = {}  # the allowed devices by UUID

    def configure(self, uuids: Iterable[str], criteria: Criteria) -> None:
        """Set the allowed devices in order of preference, and when they are free; those that stay keep their state."""
        self.criteria = criteria
        before = self.entries
        self.entries = {uuid: before.get(uuid) or DeviceEntry(self._box[uuid], Availability(uuid)) for uuid in uuids}
        for uuid in before.keys() - self.entries.keys():
            before[uuid].release()

    # ---- readings ----

    def ask(self, now: Moment, *, poll: bool) -> None:
        """Put the questions that are due: all devices at a poll, settling ones in between."""
        if poll:
            self.source.request(None, now.monotonic_s)
            if self._unanswered_s is None:
                self._unanswered_s = now.monotonic_s
            return
        due = [e for e in self.entries.values() if e.look_due_s is not None and e.look_due_s <= now.monotonic_s]
        if due:
            for entry in due:
                entry.look_due_s = None
            self._look_at([entry.device.uuid for entry in due], now)

    def _look_at(self, uuids: Iterable[str], now: Moment) -> None:
        """Ask for these devices, and for the GPUs with lower numbers: if one of them is lost, CUDA counts anew."""
        wanted = set(uuids)
        last = max(self.entries[uuid].device.index for uuid in wanted)
        if not self.degraded:  # else jobs get UUIDs anyway
            wanted |= {uuid for uuid, device in self._box.items() if device.index < last}
        self.source.request(frozenset(wanted), now.monotonic_s)

    def take_in(self, now: Moment, ours: Ours) -> list[Reading]:
        """Fold the readings that have come, and look if the source answers at all; return the readings."""
        readings = self.source.poll(now.monotonic_s)
        for reading in readings:
            self._fold(reading, now, ours)
            if reading.complete:
                self._unanswered_s = None
        error = self._silence(now)
        if error and not self.error:
            for uuid, entry in self.entries.items():
                entry.look_due_s = None
                entry.availability = Availability(uuid, why=error, since=now.at)
        self.error = error and (self.error or error)  # an outage keeps its first reason
        return readings

    def _silence(self, now: Moment) -> str:
        """Return why the source as a whole does not answer now; empty if it does."""
        trouble = self.source.trouble()
        if trouble is not None:
            return trouble.what
        is_silent = self._unanswered_s is not None and now.monotonic_s - self._unanswered_s >= SILENT_S
        return f"the GPUs have not been read for {SILENT_S:g} s" if is_silent else ""

    def _fold(self, reading: Reading, now: Moment, ours: Ours) -> None:
        for device in reading.devices:
            if device.uuid not in self._box:
                self._replace_nameless(device)
            self._box[device.uuid] = device
        for sample in reading.samples:
            entry = self.entries.get(sample.uuid)
            if entry is not None and reading.asked_at >= entry.ignore_before_s:
                entry.device = self._box.get(sample.uuid, entry.device)
                entry.fold(sample, reading, ours=ours, criteria=self.criteria)
        if reading.complete:
            self._note_missing(reading, now)
        self._note_change(reading, now)

    def _note_change(self, reading: Reading, now: Moment) -> None:
        """Note a change of the set of GPUs, and whether indices are safe."""
        self._lost -= {sample.uuid for sample in reading.samples if sample.error != "lost"}
        self._lost |= {sample.uuid for sample in reading.samples if sample.error == "lost"}
        present = frozenset(self._box.keys() - self._lost)
        if present != self._present:
            self._present, self._unsure_polls, self.changed_s = present, UNSURE_POLLS, now.monotonic_s
        elif reading.complete and self._unsure_polls:
            self._unsure_polls -= 1
        self.degraded = self._why_degraded()

    def _why_degraded(self) -> str:
        if any(device.is_mig or device.mig_parent for device in self._box.values()):
            return "MIG is in the box"
        for device in self.known():
            if device.uuid not in self._present:
                return f"GPU {device.index} ({device.uuid}) is lost or missing"
        return "the set of GPUs has just changed" if self._unsure_polls else ""

    def _note_missing(self, reading: Reading, now: Moment) -> None:
        listed = {device.uuid for device in reading.devices}
        gone = self.entries.keys() - listed - {sample.uuid for sample in reading.samples}
        for uuid in gone:
            entry = self.entries[uuid]
            entry.is_missing, entry.lost_s = True, now.monotonic_s
            entry.availability = availability.vanish(entry.availability, now.at)
        self._box = {uuid: device for uuid, device in self._box.items() if uuid in listed}

    def _replace_nameless(self, device: Device) -> None:
        """Put a GPU that gives its UUID only now in the place that it had in the order without one."""
        nameless = nameless_uuid(device.index)
        if nameless in self.entries and device.uuid not in self._at_first and not device.is_mig:
            named = DeviceEntry(device, Availability(device.uuid))
            entries = self.entries.items()
            self.entries = dict((device.uuid, named) if uuid == nameless else (uuid, entry) for uuid, entry in entries)

    def deadline_s(self) -> float | None:
        """Return when ask() or take_in() have something to do before the next poll."""
        moments = (self.source.deadline(), *(entry.look_due_s for entry in self.entries.values()))
        return min((due_s for due_s in moments if due_s is not None), default=None)

    def settle(self, uuids: Iterable[str], now: Moment, occupied: Set[str]) -> None:
        """Note that an attempt of ours has left these devices; others of ours are on those that are `occupied`."""
        for uuid in uuids:
            entry = self.entries.get(uuid)
            if entry is not None and not self.error:
                entry.settle(now, occupied=uuid in occupied)

    def note_start(self, uuids: Iterable[str], now: Moment) -> None:
        """Note that an attempt begins on these devices: they run from now on, whatever the last sample said."""
        for uuid in uuids:
            entry = self.entries[uuid]
            entry.availability = replace(entry.availability, state=DeviceState.RUNNING, why=RUNS_OURS, since=now.at)

    def was_lost(self, uuid: str, since_s: float) -> bool:
        """Return True if the device was seen lost or missing since this moment, even if it is back by now."""
        entry = self.entries.get(uuid)
        return entry is not None and entry.lost_s >= since_s

    def is_read_since_settling(self, uuid: str) -> bool:
        """Return True if the device was read since settle(), or cannot be read: its state is not older than that."""
        entry = self.entries.get(uuid)
        return entry is None or bool(self.error) or entry.is_missing or entry.asked_s >= entry.ignore_before_s

    # ---- claims ----

    def claim(self, uuids: Collection[str], now: Moment) -> bool:
        """Take the claims of all these devices in the order of their UUIDs, and ask for one more look.

        Return False if one of them is refused; then none is taken.
        """
        entries = [self.entries[uuid] for uuid in sorted(uuids)]
        taken: list[HeldClaim] = []
        try:
            for entry in entries:
                claim = entry.acquire(self.claims, self.queue, now)
                if claim is None:
                    return False
                taken.append(claim)
            for entry in entries:
                entry.claim, entry.claimed_s = taken.pop(0), now.monotonic_s
                entry.ignore_before_s = max(entry.ignore_before_s, now.monotonic_s)
        finally:
            for claim in taken:
                claim.close()
        self._look_at(uuids, now)
        return True

    def verify_claims(self, now: Moment) -> dict[str, list[int]]:
        """Keep each claim where other users look for it. Return the new descriptors of those that were renewed."""
        renewed = {uuid: entry.verify_claim(now) for uuid, entry in self.entries.items()}
        return {uuid: fds for uuid, fds in renewed.items() if fds}

    def share_claims(self, uuids: Iterable[str], fds: Collection[int], now: Moment) -> None:
        """Hold these devices too, of which an attempt has brought the claims, so that others may join it there."""
        for uuid in uuids:
            entry = self.entries.get(uuid)
            if entry is not None and entry.claim is None:
                entry.claim, entry.claimed_s = self.claims.share(uuid, fds), now.monotonic_s

    def secure(self, uuids: Collection[str], fds: Collection[int], now: Moment) -> list[int]:
        """Take the claims of these devices that are free although processes of an attempt are left there.

        `fds` are the descriptors that are held for it already. Returns those of the new claims.
        """
        taken: list[int] = []
        for uuid in uuids:
            entry = self.entries.get(uuid)
            if (entry is not None and entry.claim is not None) or self.claims.has(uuid, fds):
                continue
            with suppress(GpuschedError, OSError):  # a bad lock file, or no descriptor: tried again at the next look
                claim = self.claims.try_acquire(uuid, self.queue, now.at)
                taken += claim.fds if claim is not None else []
        return taken

    def look(self, uuids: Collection[str], now: Moment) -> None:
        """Ask for one more reading of these devices."""
        for uuid in uuids:
            self.entries[uuid].look_wanted_s = now.monotonic_s
        self._look_at(uuids, now)

    def release_all(self) -> None:
        for entry in self.entries.values():
            entry.release()

    def descriptors(self, uuids: Iterable[str]) -> list[int]:
        """Return the descriptors of the claims that are held on these devices."""
        return [fd for uuid in uuids if (claim := self.entries[uuid].claim) is not None for fd in claim.fds]

    # ---- values for others ----

    @property
    def has_devices(self) -> bool:
        """True if the box has any device, allowed or not."""
        return bool(self._box)

    def known(self) -> tuple[Device, ...]:
        """Return every device of the box, and the allowed ones that are missing just now."""
        return tuple({**{e.device.uuid: e.device for e in self.entries.values()}, **self._box}.values())

    def devices(self) -> list[Device]:
        return [e.device for e in self.entries.values()]
