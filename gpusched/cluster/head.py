"""The head of a cluster: it hands the jobs of one queue to the nodes, and ends the leases of those that are silent.

It knows no transport. All truth lies in queue.db; what it keeps in memory (when each node was heard, what it said last)
is learned anew after a restart, in which every lease counts as just renewed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gpusched import __version__
from gpusched.cluster.lease_book import LeaseBook, OpenLease
from gpusched.cluster.leases import Handout, LeaseTerms, Node, TotalLimits, hand_out, order_of
from gpusched.cluster.messages import LEAVES, Reply, Request
from gpusched.core.model import JobRow
from gpusched.core.plan.board import ClusterView, NodeView
from gpusched.core.plan.snapshot import Reason
from gpusched.host.attempts import fence
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, TransientError, meta_table, request_table, startable_jobs
from gpusched.operations.run.stored import stored_settings

log = logging.getLogger("gpusched.cluster")

SHAPE_PAGE = 64  # waiting jobs of a shape that are looked at
ASKED_DIRECTORIES = 50  # in one reply
LOOK_AGAIN_S = 30.0  # for a directory that a node lacked
RESERVE_MAX = 64  # of a node whose jobs are short
SILENT_S, SILENT_EACH_S = 5.0, 0.2  # a node that was not heard for so long is given nothing more; for each node
BUSY_PAUSE_S, BUSY_EACH_S, IDLE_PAUSE_S = 0.1, 0.02, 0.5  # between two requests of a node


@dataclass(slots=True)
class KnownNode:
    """A node as the head knows it since it runs."""

    said: Request
    heard_s: float
    directories: dict[bytes, tuple[str, float]] = field(default_factory=dict)  # why it lacks each ("": it does not)
    clock_error_s: float = 0.0  # of its wall clock
    ended: int = 0  # jobs, at its newest request: short ones need a larger reserve
    is_warned: bool = False  # that the cluster ends

    @property
    def order(self) -> tuple[int, int]:
        return self.said.session, self.said.seq


class Head:
    """One head, for one call at a time. Only the process that holds the lock of the queue may have one."""

    def __init__(
        self,
        queue: QueueDir,
        terms: LeaseTerms,
        *,
        clock_s: Callable[[], float] = fence.now_s,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.nodes: dict[str, KnownNode] = {}
        self._terms = terms
        self._clock_s, self._wall = clock_s, wall
        self._store = Store(queue.database)
        self._book = LeaseBook(queue, self._store, wall)
        self._began_s = clock_s()
        self._heard_s: dict[str, float] = {}  # when each holder was heard
        self._leases: tuple[OpenLease, ...] = ()  # at the last call
        self._reasons: Mapping[int, Reason] = {}

    def close(self) -> None:
        self._store.close()

    def exchange(self, request: Request, leave: str = "") -> Reply:
        """Take in the state of a node, and return what it is to do. It may be called twice, late or never.

        `leave`: the cluster ends, when what runs has ended (drain) or at once (now).
        """
        now_s = self._clock_s()
        leases = self.expire()
        if refused := self._refusal(request, now_s):
            return Reply(request.seq, refused=refused)
        before = self.nodes.get(request.node)
        if before is not None and before.order >= (request.session, request.seq):
            return Reply(-1)  # it came twice or late: one that is as new was answered
        known = self._know(request, before, now_s)
        known.is_warned = bool(leave)
        try:
            return self._answer(request, known, leases, leave)
        except TransientError as error:  # a full disk: what runs may go on, and nothing else happens
            log.warning("nothing can be booked: %s", error)
            return Reply(request.seq, stale=self._book.stale_of(request, leases), pause_s=IDLE_PAUSE_S)

    def _answer(self, request: Request, known: KnownNode, leases: dict[str, OpenLease], leave: str) -> Reply:
        """Book what the node reports, and return what it is to do."""
        now_s = known.heard_s
        for number, _, _ in request_table.open_requests(self._store):  # what they want stands in the queue
            request_table.acknowledge(self._store, number, self._wall())
        done, stale, known.ended = self._book.book(request, leases)
        self._book.keep_logs(request.logs)
        waiting = [] if leave or meta_table.is_paused(self._store) else self._waiting()
        handout = self._hand_out(leases.values(), waiting, now_s)
        self._leases, self._reasons = tuple(leases.values()), handout.reasons
        mine = [each for each in leases.values() if each.lease.holder == request.holder]
        chosen = {**handout.starts, **handout.reserves}
        grants = self._book.grant(request, mine, [job_id for job_id, name in chosen.items() if name == request.node])
        reserved = [each.job for each in leases.values() if not each.lease.is_started]
        if request.closed == LEAVES and not (mine or request.held):
            del self.nodes[request.node]
        back = (each for each in mine if leave or request.closed or each.job.id in handout.give_back)
        return Reply(
            request.seq,
            grants=grants,
            done=done,
            stale=stale,
            stop=frozenset(each.lease.token for each in mine if each.is_cancelled),
            back=frozenset(each.lease.token for each in back),
            directories=_unknown_directories(known, [*waiting, *reserved], now_s),
            logs=self._book.log_wishes(request.holder),
            leave=leave,
            pause_s=max(BUSY_PAUSE_S, BUSY_EACH_S * len(self.nodes)) if waiting or mine else IDLE_PAUSE_S,
        )

    def _refusal(self, request: Request, now_s: float) -> str:
        """Return why this node is not taken; empty if it is."""
        if request.version != __version__:
            return f"it has gpusched {request.version}, and the head {__version__}: install the same on both"
        if request.terms != self._terms:  # it would end its jobs too late
            lease, grace, margin = self._terms
            return (
                f"its lease is not that of the head: join with --lease {lease:g} --grace {grace:g} --margin {margin:g}"
            )
        known = self.nodes.get(request.node)
        if known is None or known.said.holder == request.holder or now_s - known.heard_s >= self._terms.lease_s:
            return ""
        return f"another box has joined as {request.node}: choose another name, or wait until its lease has run out"

    def _know(self, request: Request, before: KnownNode | None, now_s: float) -> KnownNode:
        """Take in what a node is now; this renews all that it has."""
        directories = {} if before is None else before.directories
        known = self.nodes[request.node] = KnownNode(request, now_s, directories, request.at - self._wall())
        known.directories |= {path: (why, now_s) for path, why in request.directories.items()}
        self._heard_s[request.holder] = now_s
        boards = [node.said.board for node in self.nodes.values() if node.said.board is not None]
        self._book.devices = tuple(item.view for board in boards for item in board.devices)
        return known

    def expire(self) -> dict[str, OpenLease]:
        """End the leases of nodes that were not heard for so long that their jobs have ended; return the others."""
        leases, now_s = self._book.open_leases(), self._clock_s()
        for token, known in list(leases.items()):
            silent_s = now_s - self._heard_s.get(known.lease.holder, self._began_s)
            if silent_s >= known.lease.lease_s:
                note = f"node {known.lease.node} was not heard of for {silent_s:.0f} s"
                with suppress(TransientError):  # else it is still that of its node
                    self._book.end_as_lost(known, note)
                    del leases[token]
        self._leases = tuple(leases.values())
        return leases

    # ---- handing out ----

    def _waiting(self) -> list[JobRow]:
        """Return the first waiting jobs of each shape, in the order in which they start."""
        now = self._wall()
        shapes = startable_jobs.shapes(self._store)
        rows = [row for shape in shapes for row in startable_jobs.first(self._store, now, SHAPE_PAGE, shape)]
        return sorted(rows, key=order_of)

    def _hand_out(self, leases: Iterable[OpenLease], waiting: Sequence[JobRow], now_s: float) -> Handout:
        settings = stored_settings(self._store)  # `gpusched set` changes them
        limits = TotalLimits(settings.max_gpus, settings.tag_limits)
        return hand_out(self._described_nodes(leases, now_s), waiting, self._wall(), limits)

    def view(self) -> ClusterView:
        """Return the cluster as people see it, as it was at the last call."""
        now_s, now = self._clock_s(), self._wall()
        nodes = [
            NodeView(
                node.name,
                heard_at=now - (now_s - self.nodes[node.name].heard_s),
                closed=node.shut,
                tags=tuple(sorted(node.tags)),
                board=node.board,
                running=len(node.attempts),
                reserved=len(node.reserved),
                clock_error_s=self.nodes[node.name].clock_error_s,
                is_warned=self.nodes[node.name].is_warned,
            )
            for node in self._described_nodes(self._leases, now_s)
        ]
        return ClusterView(now, tuple(nodes), {job_id: reason.text for job_id, reason in self._reasons.items()})

    def _described_nodes(self, leases: Iterable[OpenLease], now_s: float) -> list[Node]:
        """Return the nodes that are known as the plan sees them."""
        by_node: dict[str, list[OpenLease]] = {}
        for each in leases:
            by_node.setdefault(each.lease.node, []).append(each)
        return [self._described(name, known, by_node.get(name, ()), now_s) for name, known in self.nodes.items()]

    def _described(self, name: str, known: KnownNode, leases: Sequence[OpenLease], now_s: float) -> Node:
        silent_s, board = now_s - known.heard_s, known.said.board
        is_silent = silent_s >= SILENT_S + SILENT_EACH_S * len(self.nodes)
        slots = 1 if board is None else max(1, min(board.limits.max_gpus, len(board.devices)))
        return Node(
            name,
            board,
            known.said.tags,
            closed=known.said.closed or (f"not heard of for {silent_s:.0f} s" if is_silent else ""),
            attempts=tuple(each.planned() for each in leases if each.lease.is_started),
            reserved=tuple(each.job for each in leases if not each.lease.is_started),
            reserve=min(RESERVE_MAX, max(slots, 4 * known.ended)),
            directories={path: why for path, (why, _) in known.directories.items()},
        )


def _unknown_directories(known: KnownNode, jobs: Iterable[JobRow], now_s: float) -> tuple[bytes, ...]:
    """Return the directories of these jobs of which it is not known if the node has them now."""

    def is_unknown(path: bytes) -> bool:
        why, looked_s = known.directories.get(path, ("never looked for", -LOOK_AGAIN_S))
        return bool(why) and now_s - looked_s >= LOOK_AGAIN_S

    return tuple(path for path in dict.fromkeys(job.cwd for job in jobs) if is_unknown(path))[:ASKED_DIRECTORIES]
