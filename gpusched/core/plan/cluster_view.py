"""A cluster as its head knows it at one moment, for others to read. Values only; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpusched.core.plan.board import Board


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as the head knows it. `closed`: why it is given nothing more."""

    name: str
    heard_at: float
    closed: str = ""
    tags: tuple[str, ...] = ()
    board: Board | None = None
    running: int = 0
    reserved: int = 0
    clock_error_s: float = 0.0
    is_told: bool = False  # that the cluster ends


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster of a queue at one moment. `reasons` are those of the first waiting jobs, by id."""

    at: float
    nodes: tuple[NodeView, ...] = ()
    reasons: dict[int, str] = field(default_factory=dict)
