"""SHA-256 sums, made in a thread of their own: hashing lets go of the interpreter's lock. Writes nothing."""

from __future__ import annotations

import hashlib
import queue
import threading
from typing import Any

CHUNK = 1 << 20


class Hasher:
    """Takes data in order. What was given may change again once its ticket is through."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()
        self._given = self._done = 0
        self._through = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="hasher", daemon=True)
        self._thread.start()

    def update(self, digest: Any, data: bytes | memoryview) -> int:
        """Add to a sum; the ticket to wait for. Only `wait` bounds what is under way."""
        self._given += 1
        self._queue.put((digest, data))
        return self._given

    def wait(self, ticket: int) -> None:
        if self._done < ticket:
            with self._through:
                self._through.wait_for(lambda: self._done >= ticket)

    def settle(self) -> None:
        """Return once all that was given is in its sum."""
        self.wait(self._given)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (given := self._queue.get()) is not None:
            given[0].update(given[1])
            with self._through:
                self._done += 1
                self._through.notify_all()


def hash_file(path: str) -> tuple[int, Any]:
    """Size and SHA-256 object of a file."""
    digest, size = hashlib.sha256(), 0
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while got := file.readinto(buffer):
            digest.update(view[:got])
            size += got
    return size, digest
