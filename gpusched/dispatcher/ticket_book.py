"""The tickets of one process that waits for GPUs: its own, those of others, and what was left to whom.

It looks at them at each poll and whenever a GPU falls free; without other users that is one look into a directory. Who
comes first is decided by core/plan/fairness.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from gpusched.config.settings import Settings
from gpusched.core.plan import fairness, observe
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.fairness import ALONE, UNHEEDED_S, Sharing, Ticket, Want, Yield
from gpusched.core.plan.snapshot import Claim, Plan, Start
from gpusched.dispatcher.device_book import DeviceBook, DeviceEntry
from gpusched.dispatcher.timers import Moment
from gpusched.host.gpus.claims import Holder
from gpusched.host.gpus.tickets import OwnTicket, read_tickets


class _Gathering:
    """The devices that are kept until there are enough for a job, and when that has led to nothing for too long."""

    def __init__(self) -> None:
        self._kept = frozenset[str]()
        self._grown_s = self._pause_until_s = 0.0

    def may(self, want: Want, now: Moment) -> bool:
        """Return True if the job needs one device, or devices may be kept for it."""
        return want.gpus == 1 or now.monotonic_s >= self._pause_until_s

    def note(self, plan: Plan, started: Set[str], entries: Mapping[str, DeviceEntry], queue: str, now: Moment) -> None:
        """Tell others which claims are only kept, by a plan that starts jobs on some devices."""
        held = frozenset(uuid for uuid in plan.gathered if entries[uuid].claim is not None)
        for uuid in (held - self._kept) | (self._kept & started):
            if (claim := entries[uuid].claim) is not None:
                claim.label(queue, now.at, gathers=uuid in held)
        if held - self._kept or not held:
            self._grown_s = now.monotonic_s
        elif now.monotonic_s >= self._grown_s + UNHEEDED_S:
            self._pause_until_s = now.monotonic_s + UNHEEDED_S
        self._kept = held


class TicketBook:
    """look() comes before each plan, and note() behind it. Others are told the queue of the devices."""

    def __init__(self, devices: DeviceBook) -> None:
        self.sharing = ALONE
        self.is_claiming = False  # a start is near: look once more before it
        self._devices, self._own, self._uid = devices, OwnTicket(devices.claims), os.getuid()
        self._want: Want | None = None  # by the newest plan
        self._was_served = False  # a job has started since the ticket was taken
        self._mine, self._turn_at = frozenset[str](), 0.0  # devices of this user, and when there was one more
        self._held: Counter[int] = Counter()  # devices by uid
        self._yields: Mapping[int, Yield] = {}
        self._left: dict[str, str] = {}  # devices that are left to others, each with a user
        self._gathering = _Gathering()

    def look(self, now: Moment, settings: Settings, *, polled: bool) -> None:
        """Look at the tickets and claims of others; renew the own ticket at a poll, and when a turn of ours is over."""
        tickets = read_tickets(self._devices.claims, self._own.ticket)
        has_others = any(ticket.uid != self._uid for ticket in tickets)
        entries = self._devices.entries
        ours = {uuid for uuid, entry in entries.items() if entry.availability.state is DeviceState.RUNNING}
        held = {uuid for uuid, entry in entries.items() if entry.claim is not None}
        others = {device.uuid for device in self._devices.known()} - ours - held
        found = {uuid: self._devices.claims.holder(uuid, search=False) for uuid in others}
        holders = {uuid: holder for uuid, holder in found.items() if holder is not None}
        for uuid, entry in entries.items():
            holder = holders.get(uuid)
            user = None if holder is None else "" if holder.uid == self._uid else holder.user
            entry.holder = "" if holder is None else observe.claimed_by(user, holder.queue)
        mine = frozenset(ours.union(uuid for uuid, holder in holders.items() if holder.uid == self._uid))
        is_over = bool(self._mine - mine)
        self._mine, self._turn_at = mine, now.at if is_over else self._turn_at
        if polled or (has_others and is_over):
            self._renew(now, settings)
        self._take_in(tickets, holders, settings, now)

    def _take_in(self, tickets: list[Ticket], holders: Mapping[str, Holder], settings: Settings, now: Moment) -> None:
        own = self._own.ticket
        sharing = sharing_of(tickets, holders, settings, yields=self._yields, own=own, now_s=now.monotonic_s)
        self._held = Counter(holder.uid for holder in holders.values() if holder.uid is not None)
        self.sharing = replace(sharing, since_at=None if own is None else max(own.since_at, self._turn_at))

    def _renew(self, now: Moment, settings: Settings) -> None:
        """Take or give back the own ticket, by the newest plan; its age is that of the wait since a job was started."""
        want = self._want if self._want is not None and self._gathering.may(self._want, now) else None
        own = self._own.ticket
        if own is not None and (want is None or (self._was_served and want.job_id != own.want.job_id)):
            self._own.withdraw()
        if want is not None:
            self._was_served &= self._own.ticket is not None
            check_s = settings.max_checks * settings.poll_interval
            self._own.hold(want, self._turn_at, check_s=check_s, queue=self._devices.queue, yields=self._left)

    def note(self, plan: Plan, now: Moment) -> None:
        """Remember what the plan waits for, leaves to others, and gathers."""
        started = {uuid for action in plan.actions if isinstance(action, Start) for uuid in action.devices}
        self.is_claiming = any(isinstance(action, Claim) for action in plan.actions)
        self.is_claiming |= any(reason.kind == "look" for reason in plan.reasons.values())
        if started:  # the next job waits from now on
            self._was_served = True
            self.sharing = replace(self.sharing, since_at=None)
        if plan.want is not None or not self.is_claiming:
            self._want = plan.want
        entries = self._devices.entries
        free = {
            uuid
            for uuid, entry in entries.items()
            if entry.availability.state is DeviceState.FREE and not (entry.refused or entry.holder)
        }
        self._yields = fairness.note_yields(self._yields, plan.left_to, free, self._held, now.monotonic_s)
        self._left = {uuid: rival.user for uuid, rival in plan.left_to.items() if uuid in free}
        self._gathering.note(plan, started, entries, self._devices.queue, now)

    def close(self) -> None:
        """Give the own ticket back."""
        self._own.withdraw()


def sharing_of(
    tickets: Sequence[Ticket],
    holders: Mapping[str, Holder],
    settings: Settings,
    *,
    yields: Mapping[int, Yield],
    own: Ticket | None,
    now_s: float,
) -> Sharing:
    """Return who comes before this user by these tickets and claims. `own`: the ticket of this process, if it waits."""
    uids = [(holder.uid, holder.gathers) for holder in holders.values() if holder.uid is not None]
    held, gathered = Counter(uid for uid, _ in uids), Counter(uid for uid, gathers in uids if gathers)
    heeded = fairness.heeded(tickets, yields, now_s)
    gatherer = fairness.gatherer(tickets, heeded, gathered)
    rivals = fairness.rivals(heeded, gatherer, held, gathered, yields, settings.max_yield)
    return Sharing(
        rivals=tuple(rival for rival in rivals if rival.uid != os.getuid()),
        own_devices=tuple(uuid for uuid, holder in holders.items() if holder.uid == os.getuid()),
        gathers=own is not None and gatherer is not None and gatherer.path == own.path,
    )
