"""Choose the attempts to stop so that the queue holds no more GPUs than it may. Stops none."""

from __future__ import annotations

from collections.abc import Sequence

from gpusched.core.model import Attempt
from gpusched.core.plan.snapshot import ENDED_FACTS


def find_surplus(attempts: Sequence[Attempt], max_gpus: int) -> list[Attempt]:
    """Return the attempts whose end leaves at most `max_gpus` devices in use: those that have run for the least time.

    A device is as old as the oldest attempt on it, since all of them have to leave it. What is being stopped already
    counts as gone.
    """
    staying = [a for a in attempts if a.fact not in ENDED_FACTS and not (a.stop_sent or a.cancel_requested)]
    surplus: list[Attempt] = []
    while True:
        since: dict[str, float] = {}
        for attempt in staying:
            for uuid in attempt.devices:
                since[uuid] = min(attempt.started_at, since.get(uuid, attempt.started_at))
        if len(since) <= max_gpus:
            return surplus
        youngest = max(since, key=lambda uuid: (since[uuid], uuid))
        surplus += [attempt for attempt in staying if youngest in attempt.devices]
        staying = [attempt for attempt in staying if youngest not in attempt.devices]
