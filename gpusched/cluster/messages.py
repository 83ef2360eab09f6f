"""The messages between an agent and the head of a cluster: values, safe to arrive twice, late or never.

The agent asks, the head answers. A request has the whole state of the node and a reply the whole wish of the head, so
a lost one is made good by the next. Each word about a job names the token of its lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gpusched.cluster.leases import LeaseTerms
from gpusched.core.model import AttemptRow, JobRow
from gpusched.core.plan.board import Board

HeldState = Literal["waiting", "running", "ended"]
LEAVES = "it leaves the cluster"  # why a node takes no more jobs
LOG_PART_BYTES = 1 << 20  # of one log in one request


class Held(NamedTuple):
    """A lease that the node has, and how far its job is. An end without an attempt: it was given back unbegun."""

    token: str
    state: HeldState
    attempt: AttemptRow | None = None
    log_bytes: int = 0


class LogPart(NamedTuple):
    """Bytes of the log of an attempt, or of that of its stderr, from an offset on."""

    token: str
    is_error: bool
    offset: int
    data: bytes


class Request(NamedTuple):
    """The state of a node."""

    node: str
    holder: str  # queue_id of its queue
    session: int  # of the agent: each start has a larger one
    seq: int
    version: str  # of gpusched
    terms: LeaseTerms  # by which it counts
    at: float  # by the wall clock of the node
    tags: frozenset[str] = frozenset()
    closed: str = ""  # why it takes no more jobs
    board: Board | None = None
    held: tuple[Held, ...] = ()
    directories: Mapping[bytes, str] = {}  # those that were asked for: why it lacks them, "" for those that it has
    logs: tuple[LogPart, ...] = ()


class Grant(NamedTuple):
    """A lease of one attempt of a job."""

    token: str
    job: JobRow
    attempt: int
    environment: bytes  # NAME=value with a NUL behind each, added to the variables of the node


class LogWish(NamedTuple):
    """The part of a log that the head has already."""

    token: str
    offset: int
    error_offset: int


class Reply(NamedTuple):
    """The wishes of the head. What the node has and none of these lists name is renewed."""

    seq: int
    refused: str = ""  # why the node is not taken; then nothing else counts
    grants: tuple[Grant, ...] = ()
    done: frozenset[str] = frozenset()  # tokens whose ends are booked
    stale: frozenset[str] = frozenset()  # tokens that are no leases any more: their jobs must end
    stop: frozenset[str] = frozenset()  # tokens whose jobs a person has cancelled
    back: frozenset[str] = frozenset()  # tokens whose jobs are wanted back if they have not begun
    directories: tuple[bytes, ...] = ()  # does the node have these?
    logs: tuple[LogWish, ...] = ()
    leave: str = ""  # drain | now: the cluster ends
    pause_s: float = 0.5  # before the next request, unless something happens on the node
