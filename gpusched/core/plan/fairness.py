"""Fair turns among the users of a box: whose turn comes first, to whom a free GPU is left, for how long, who gathers.

Users are compared by the GPUs that they hold, and then by how long they wait for a turn. Whoever compares two users
finds the same one first, so no two leave a GPU to each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

YIELDS_PER_CHECK = 3  # how long a GPU is left to a user, in check times of that user's ticket
LEAST_YIELD_S, MOST_YIELD_S = 120.0, 3600.0
UNHEEDED_S = 3600.0  # nothing is left to a user for so long who let a free GPU pass


@dataclass(frozen=True, slots=True)
class Want:
    """The devices that could serve the first job that waits for some, and how many it needs."""

    job_id: int
    gpus: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ticket:
    """The wait of a user that counts. `yields`: the devices that are left to others meanwhile, each with a user."""

    uid: int
    user: str
    since_at: float
    want: Want
    turn_at: float = 0.0  # when the user gave a device back for the last time: the next turn is waited for since then
    check_s: float = 0.0  # for which a GPU is looked at before it counts as free
    queue: str = ""
    yields: tuple[tuple[str, str], ...] = ()
    path: str = ""

    def limit_s(self, max_yield_s: float | None) -> float:
        """Return for how long a free GPU is left to this user at most."""
        if max_yield_s is not None:
            return max_yield_s
        return min(MOST_YIELD_S, max(LEAST_YIELD_S, YIELDS_PER_CHECK * self.check_s))


@dataclass(frozen=True, slots=True)
class Rival:
    """Another user who waits for GPUs. Those that are only gathered for a job do not count as held."""

    uid: int
    user: str
    since_at: float  # since when the next turn is waited for
    devices: tuple[str, ...]
    held: int = 0
    limit_s: float = LEAST_YIELD_S
    left: str = ""  # the device that is left to this user since an earlier plan


@dataclass(frozen=True, slots=True)
class Sharing:
    """The use of the box by others, and by other processes of this user."""

    rivals: tuple[Rival, ...] = ()
    own_devices: tuple[str, ...] = ()  # that other processes of this user hold
    since_at: float | None = None  # since when the next turn is waited for; None: there is no ticket
    gathers: bool = False  # devices may be kept for a job that needs several until there are enough


ALONE = Sharing()


@dataclass(frozen=True, slots=True)
class Yield:
    """The device that is left to a user, since when, and for how long others were before. Monotonic seconds."""

    device: str = ""
    since_s: float = 0.0
    spent_s: float = 0.0
    held: int = 0  # by that user when it began
    unheeded_until_s: float = -math.inf


_NO_YIELD = Yield()


def heeded(tickets: Iterable[Ticket], yields: Mapping[int, Yield], now_s: float) -> list[Ticket]:
    """Return the tickets of the users who have let no free GPU pass lately."""
    return [ticket for ticket in tickets if yields.get(ticket.uid, _NO_YIELD).unheeded_until_s <= now_s]


def gatherer(tickets: Iterable[Ticket], trusted: Sequence[Ticket], gathered: Mapping[int, int]) -> Ticket | None:
    """Return the ticket whose job may keep devices while it gathers: the oldest one that wants several.

    One that is not heeded counts while it keeps some: else two might wait for what the other one keeps.
    """
    several = [each for each in tickets if each.want.gpus > 1 and (each in trusted or gathered.get(each.uid))]
    return min(several, key=lambda ticket: (ticket.since_at, ticket.uid), default=None)


def rivals(
    tickets: Sequence[Ticket],
    gathers: Ticket | None,
    held: Mapping[int, int],
    gathered: Mapping[int, int],
    yields: Mapping[int, Yield],
    max_yield_s: float | None,
) -> tuple[Rival, ...]:
    """Return those whose tickets want one device, or may gather, in the order of their turns.

    `held` and `gathered`: devices by uid. A user who gathers cannot have more of them than the ticket explains.
    """
    found = []
    for ticket in tickets:
        if ticket.want.gpus == 1 or ticket is gathers:
            uid, idle = ticket.uid, min(gathered.get(ticket.uid, 0), ticket.want.gpus - 1)
            found.append(
                Rival(
                    uid,
                    ticket.user,
                    max(ticket.since_at, ticket.turn_at),
                    ticket.want.devices,
                    held=held.get(uid, 0) - idle,
                    limit_s=ticket.limit_s(max_yield_s),
                    left=yields.get(uid, _NO_YIELD).device,
                )
            )
    return tuple(sorted(found, key=lambda rival: (not rival.left, rival.held, rival.since_at)))


class Turns:
    """The devices that one plan leaves to others: one for each user whose turn comes first."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self.left_to: dict[str, Rival] = {}  # by UUID

    def leave(self, uuids: Sequence[str], holds: int) -> None:
        """Leave devices to those who hold fewer than `holds`, or as many and wait longer; the first of `uuids` first.

        `holds` are the devices that the own user would hold without these.
        """
        since_at = self._sharing.since_at
        own = (holds, math.inf if since_at is None else since_at)
        served = {rival.uid for rival in self.left_to.values()}
        for rival in self._sharing.rivals:
            if rival.uid in served or (rival.held, rival.since_at) >= own:
                continue
            usable = [uuid for uuid in uuids if uuid in rival.devices and uuid not in self.left_to]
            if usable:
                self.left_to[rival.left if rival.left in usable else usable[0]] = rival


def note_yields(
    yields: Mapping[int, Yield],
    left_to: Mapping[str, Rival],
    free: Set[str],
    held: Mapping[int, int],
    now_s: float,
) -> dict[int, Yield]:
    """Return what has been left to each user after a plan that leaves these devices; only the `free` ones count.

    The time counts on, whatever new tickets say, until the user holds more devices, or somebody else is on the device.
    """
    offers = {rival.uid: (uuid, rival.limit_s) for uuid, rival in left_to.items() if uuid in free}
    after = {}
    for uid in yields.keys() | offers.keys():
        before, (device, limit_s) = yields.get(uid, _NO_YIELD), offers.get(uid, ("", math.inf))
        lasted_s = now_s - before.since_s if before.device in free else 0.0
        if held.get(uid, 0) > before.held:
            after[uid] = Yield(device, now_s, 0.0, held.get(uid, 0), before.unheeded_until_s)
        elif device and device == before.device:
            passed = before.spent_s + lasted_s >= limit_s
            after[uid] = Yield(unheeded_until_s=now_s + UNHEEDED_S) if passed else before
        else:
            spent_s = before.spent_s + lasted_s
            after[uid] = Yield(device, now_s, spent_s, held.get(uid, 0), before.unheeded_until_s)
    return after
