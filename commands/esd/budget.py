"""How many bytes may be in memory at once, and who waits for them. Allocates nothing."""

from __future__ import annotations

import threading


class Budget:
    """Bytes that are taken in the order of asking. Whoever is alone always gets what it asks for."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._condition = threading.Condition()

    def take(self, amount: int) -> None:
        """Wait until there is so much, or nobody holds anything."""
        with self._condition:
            self._condition.wait_for(lambda: not self._taken or self._taken + amount <= self._limit)
            self._taken += amount

    def give(self, amount: int) -> None:
        with self._condition:
            self._taken -= amount
            self._condition.notify_all()
