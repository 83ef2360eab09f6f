"""The bytes that may be in memory at once, and a tensor that is read when it is needed. Allocates nothing itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Budget:
    """Bytes that are taken in the order of the requests. A request that is alone is always granted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._turn = threading.Lock()
        self._condition = threading.Condition()

    @contextmanager
    def taken(self, amount: int) -> Iterator[None]:
        """Take so many bytes once they are free, or nothing else is taken; give them back at the end."""
        with self._turn, self._condition:
            self._condition.wait_for(lambda: not self._taken or self._taken + amount <= self._limit)
            self._taken += amount
        try:
            yield
        finally:
            with self._condition:
                self._taken -= amount
                self._condition.notify_all()


class LazyTensor:
    """A tensor that is read on first use, and again if it was dropped before."""

    def __init__(self, read: Callable[[], torch.Tensor]) -> None:
        self._read = read
        self._tensor: torch.Tensor | None = None

    def get(self) -> torch.Tensor:
        if self._tensor is None:
            self._tensor = self._read()
        return self._tensor

    def drop(self) -> None:
        self._tensor = None
