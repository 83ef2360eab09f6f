"""Decide what the head of a cluster hands to its nodes, by the plan of each node. Values in, values out.

A lease is one attempt of one job on one node. A job is handed to a node where it could start now, else to one where a
small reserve waits; what waits there is asked back when another node could start it, or when a job before it waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpusched.common.errors import GpuschedError
from gpusched.core.model import Attempt, JobRow
from gpusched.core.plan import observe
from gpusched.core.plan.board import Board
from gpusched.core.plan.occupancy import Occupancy
from gpusched.core.plan.placement import Placement
from gpusched.core.plan.snapshot import MARGIN_BYTES, Claim, Reason, Start

SHOWN_NODES = 4  # in the reason of a job


class LeaseTerms(NamedTuple):
    """The time for which a node may keep jobs without news, which ends a job `fence_after_s` after the last request."""

    lease_s: float = 900.0
    grace_s: float = 10.0  # from TERM to KILL
    margin_s: float = 10.0  # the job has ended so long before the head gives it to another node

    @property
    def fence_after_s(self) -> float:
        return self.lease_s - (self.grace_s + self.margin_s)

    def check(self) -> LeaseTerms:
        """Return them. Raises GpuschedError for a lease that leaves a node no time to renew it."""
        least_s = 3 * (self.grace_s + self.margin_s)
        if self.lease_s < least_s:
            problem = f"a lease of {self.lease_s:g} s is too short for a grace time of {self.grace_s:g} s"
            raise GpuschedError(
                problem, where="lease", hint=f"at least {least_s:g} s: 3 x (grace + {self.margin_s:g} s)"
            )
        return self


@dataclass(frozen=True, slots=True)
class Node:
    """A box of the cluster as its agent described it last. `closed`: why it is given nothing; empty: it may be."""

    name: str
    board: Board | None = None
    tags: frozenset[str] = frozenset()
    closed: str = ""
    attempts: tuple[Attempt, ...] = ()  # that have begun there
    reserved: tuple[JobRow, ...] = ()  # handed to it, and not begun
    reserve: int = 1  # how many may wait there
    directories: Mapping[bytes, str] = field(default_factory=dict)  # why it lacks each; empty for those that it has

    @property
    def shut(self) -> str:
        """The reason why it is given nothing, also by the word of its dispatcher; empty: it may be."""
        if self.closed or self.board is None:
            return self.closed or "it has not looked at its GPUs yet"
        return self.board.closed


@dataclass(frozen=True, slots=True)
class Handout:
    """The jobs to hand to each node, by id; the reserved jobs to ask back; why the others wait."""

    starts: Mapping[int, str] = field(default_factory=dict)
    reserves: Mapping[int, str] = field(default_factory=dict)
    give_back: frozenset[int] = frozenset()
    reasons: Mapping[int, Reason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TotalLimits:
    """The limits that hold over all nodes together. None: no limit."""

    max_gpus: int | None = None
    tag_gpus: Mapping[str, int] = field(default_factory=dict)


def hand_out(
    nodes: Sequence[Node],
    waiting: Sequence[JobRow],
    now: float,
    limits: TotalLimits = TotalLimits(),
) -> Handout:
    """Decide for these waiting jobs, and for those that are reserved, in the order in which they are to start."""
    shut = {node.name: node.shut for node in nodes if node.shut}
    rooms = [_NodeRoom(node, now) for node in nodes if node.name not in shut]
    total = _Total(nodes, limits)
    stuck = {job.id: (room, job) for room in rooms for job in room.node.reserved if not room.starts(job)}
    starts: dict[int, str] = {}
    reserves: dict[int, str] = {}
    reasons: dict[int, Reason] = {}
    back: set[int] = set()
    for job in sorted([*waiting, *(job for _, job in stuck.values())], key=order_of):
        if job.id in stuck:
            back |= {job.id} if _other_room(stuck[job.id][0], job, rooms) else set()
            continue
        refusals = {room.node.name: room.refusal(job) for room in rooms}
        fitting = _by_preference(job, [room for room in rooms if not refusals[room.node.name]])
        if (reason := total.reason(job)) is None:
            room = next((room for room in fitting if room.starts(job)), None)
            if room is not None:
                starts[job.id] = room.node.name
            elif (room := _with_reserve(job, fitting, stuck.values(), back)) is not None:
                room.spare -= 1
                reserves[job.id] = room.node.name
            else:
                reason = _reason({**refusals, **{room.node.name: room.why(job) for room in fitting}}, shut)
        if reason is None:
            total.take(job)
        else:
            reasons[job.id] = reason
    return Handout(starts, reserves, frozenset(back), reasons)


def order_of(job: JobRow) -> tuple[int, float, int]:
    """Return what jobs are sorted by: those that start first come first."""
    return -job.prio, job.position, job.id


class _NodeRoom:
    """The rest of one node while one handout is made."""

    def __init__(self, node: Node, now: float) -> None:
        assert node.board is not None
        self.node = node
        self.board = replace(node.board, waited_since={})  # its ids are those of the node
        snapshot = observe.snapshot(self.board, now, attempts=node.attempts)
        self.occupancy = Occupancy(snapshot)
        self._placement = Placement(snapshot, self.occupancy)
        self._reasons: dict[str, str] = {}  # by the shape of a job that cannot start: those behind it cannot either
        self._refusals: dict[tuple[str, bytes], str] = {}
        self.spare = node.reserve - len(node.reserved)

    def starts(self, job: JobRow) -> bool:
        """Return True if the job can start here now; then it is counted."""
        if job.shape and job.shape in self._reasons:
            return False
        placed = self._placement.place(replace(job, begin_at=0.0, not_before=0.0))
        if isinstance(placed, Start | Claim) or placed.kind == "look":
            return True
        self._reasons[job.shape] = placed.text
        return False

    def why(self, job: JobRow) -> str:
        return self._reasons.get(job.shape, "")

    def refusal(self, job: JobRow) -> str:
        """Return why the job can never start on this node as it is; empty if it can."""
        key = job.shape, job.cwd
        if not job.shape or key not in self._refusals:
            self._refusals[key] = self._refusal(job)
        return self._refusals[key]

    def _refusal(self, job: JobRow) -> str:
        node = self.node
        if job.node and job.node != node.name:
            return f"the job wants node={job.node}"
        if job.node_tag and job.node_tag not in node.tags:
            return f"it has no tag {job.node_tag}"
        if why := node.directories.get(job.cwd, "its directory is being looked for there"):
            return why
        if job.gpus > self.board.limits.max_gpus:
            return f"it may use {self.board.limits.max_gpus} GPUs at once (max-gpus)"
        devices = [
            item.view for item in self.board.devices if item.view.is_present and item.view.is_model(job.gpu_model)
        ]
        large = [view for view in devices if view.capacity_bytes - MARGIN_BYTES >= job.mem_bytes or not job.mem_bytes]
        if len(large) < job.gpus:
            model = f" named {job.gpu_model}" if job.gpu_model else ""
            return f"it has {len(large)} GPUs{model}" + (" with so much memory" if len(large) < len(devices) else "")
        return ""


def _by_preference(job: JobRow, rooms: Sequence[_NodeRoom]) -> list[_NodeRoom]:
    """Return the nodes for a job, the best one first: the emptiest, or with pack the fullest."""
    emptiest = sorted(rooms, key=lambda room: (-len(room.occupancy.whole), len(room.node.reserved) - room.spare))
    return emptiest[::-1] if job.over_nodes == "pack" else emptiest


def _with_reserve(
    job: JobRow, fitting: Iterable[_NodeRoom], stuck: Iterable[tuple[_NodeRoom, JobRow]], back: set[int]
) -> _NodeRoom | None:
    """Return a node where the job may wait; where less urgent jobs have taken the place, ask one of these back."""
    room = max((room for room in fitting if room.spare > 0), key=lambda room: room.spare, default=None)
    if room is None:
        names = {each.node.name for each in fitting}
        later = [other for home, other in stuck if home.node.name in names and other.prio < job.prio]
        back |= {min(later, key=lambda other: other.prio).id} if later else set()
    return room


def _other_room(home: _NodeRoom, job: JobRow, rooms: Iterable[_NodeRoom]) -> bool:
    """Return True if a node other than its own could start a reserved job; its place there is then kept for it."""
    return any(room is not home and not room.refusal(job) and room.starts(job) for room in rooms)


def _reason(texts: Mapping[str, str], shut: Mapping[str, str]) -> Reason:
    """Return the reason of a job that no node takes now: what each node says."""
    by_text: dict[str, list[str]] = {}
    for name, text in {**texts, **shut}.items():
        by_text.setdefault(text or "its reserve is full", []).append(name)
    parts = [f"{', '.join(names[:SHOWN_NODES])}: {text}" for text, names in by_text.items()]
    return Reason("devices", "; ".join(parts) or "the cluster has no node")


class _Total:
    """The limits over all nodes that are left while one handout is made."""

    def __init__(self, nodes: Iterable[Node], limits: TotalLimits) -> None:
        self._limits = limits
        self._used: dict[str, int] = {}  # GPUs by tag; "": all
        for node in nodes:
            for job in (*(attempt.job for attempt in node.attempts), *node.reserved):
                self.take(job)

    def take(self, job: JobRow) -> None:
        for tag in ("", *job.tags):
            self._used[tag] = self._used.get(tag, 0) + job.gpus

    def reason(self, job: JobRow) -> Reason | None:
        """Return the limit that keeps the job from every node; None if none does."""
        limits = {"": self._limits.max_gpus, **{tag: self._limits.tag_gpus.get(tag) for tag in job.tags}}
        for tag, limit in limits.items():
            if limit is not None and job.gpus and self._used.get(tag, 0) + job.gpus > limit:
                what = f"for the tag {tag} " if tag else ""
                text = f"{self._used.get(tag, 0)} of {limit} GPUs {what}are in use on all nodes together"
                return Reason("tag" if tag else "max_gpus", text)
        return None
