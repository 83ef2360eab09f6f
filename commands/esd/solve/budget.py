"""The bytes that may be in memory at once, and a tensor that is read when it is needed. Allocates nothing itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch


class Budget:
    """Bytes that are taken in the order of the requests. A request that is alone is always granted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._condition = threading.Condition()

    def take(self, amount: int) -> None:
        """Wait until so many bytes are free, or until nothing is taken."""
        with self._condition:
            self._condition.wait_for(lambda: not self._taken or self._taken + amount <= self._limit)
            self._taken += amount

    def give_back(self, amount: int) -> None:
        with self._condition:
            self._taken -= amount
            self._condition.notify_all()


class LazyTensor:
    """A tensor that is read on first use, and again if it was dropped before."""

    def __init__(self, read: Callable[[], torch.Tensor], on_drop: Callable[[], object] = lambda: None) -> None:
        """`on_drop` is called the first time that the tensor is dropped."""
        self._read = read
        self._on_drop: Callable[[], object] | None = on_drop
        self._tensor: torch.Tensor | None = None

    def get(self) -> torch.Tensor:
        if self._tensor is None:
            self._tensor = self._read()
        return self._tensor

    def drop(self) -> None:
        self._tensor = None
        if self._on_drop is not None:
            self._on_drop()
            self._on_drop = None
