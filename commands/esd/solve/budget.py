"""How many bytes may be in memory at once, who waits for them, and who lets go. Allocates nothing itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch


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


class Held:
    """A tensor that is read when it is looked at, and again if it was let go before."""

    def __init__(self, read: Callable[[], torch.Tensor], let_go: Callable[[], object] = lambda: None) -> None:
        """`let_go` is called the first time that it is."""
        self._read = read
        self._let_go: Callable[[], object] | None = let_go
        self._tensor: torch.Tensor | None = None

    def get(self) -> torch.Tensor:
        if self._tensor is None:
            self._tensor = self._read()
        return self._tensor

    def drop(self) -> None:
        self._tensor = None
        if self._let_go is not None:
            self._let_go()
            self._let_go = None
