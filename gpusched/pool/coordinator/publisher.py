"""The stage that publishes the parts of a pool, as a child process. Whatever it fails at stops no item."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from gpusched.pool.publication import Publication

_AGAIN_S = 5.0  # between two starts of a stage that ends by itself
_STEP_S = 0.2
_PIECE_BYTES = 1 << 16


class Publisher:
    """The stage `commands/publish` for one pool; none where parts stay on this disk as they are. A context manager."""

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self._child: subprocess.Popen[bytes] | None = None
        self._line = socket.socket(socket.AF_UNIX)  # to the child, once there is one
        self._start_at = 0.0
        self.upload: dict[str, Any] = {}  # see PartsPublisher.status; empty without a URL

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *error: object) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        self._line.close()

    def send(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Send numbers of the progress to the stage, which starts again if it has ended. Return how far it is."""
        now = time.monotonic()
        if self._publication.is_needed and not self._is_running and now >= self._start_at:
            self._start_at = now + _AGAIN_S
            self._start()
        if self._child is not None:
            with suppress(OSError):  # it takes no more now, or has ended
                self._line.send(json.dumps(numbers).encode() + b"\n")
            self._read()
        return self.upload

    def finish(self) -> Iterator[None]:
        """Wait until the stage has published the rest, or has given up; yield again and again meanwhile."""
        if not self._publication.is_needed:
            return
        if not self._is_running:
            self._start()
        self._start_at = float("inf")
        self._line.shutdown(socket.SHUT_WR)
        while self._is_running:
            self._read()
            yield
            time.sleep(_STEP_S)
        self._read()

    @property
    def _is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def _start(self) -> None:
        self._line.close()
        self._line, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "gpusched.commands.publish"]
            self._child = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno())
        self._line.sendall(msgspec.json.encode(self._publication) + b"\n")  # not in its command, which others can read
        self._line.setblocking(False)

    def _read(self) -> None:
        """Take in the newest line of the stage, if there is a whole one."""
        with suppress(OSError, ValueError):
            said = self._line.recv(_PIECE_BYTES)
            if said and self._publication.url:
                self.upload = json.loads(said.splitlines()[-1])
