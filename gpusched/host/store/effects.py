"""The consequences of state changes for the jobs that wait for others, as one connection collects them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gpusched.core.jobs.job import JobState


@dataclass(slots=True)
class DependencyEffects:
    """The jobs that this connection has stopped or freed, until somebody takes them (`transitions`)."""

    stopped: list[tuple[int, JobState, str]] = field(default_factory=list)  # job, its new state, the cause
    freed: bool = False
    uncounted: deque[tuple[int, str, str]] = field(default_factory=deque)  # changes of ends not yet in `sets`
