"""The connection of a worker to the coordinator of its pool. It outlives a coordinator that is killed.

A thread that needs items reads the socket itself: no thread hands anything to another one. Answers are kept until the
coordinator says that they are stored, and sent again to the next one.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from gpusched.pool.messages import (
    SOCKET,
    TO_WORKER,
    Acknowledged,
    Answer,
    Answers,
    FrameReader,
    Hello,
    Leave,
    Message,
    Work,
    frame,
    peer_of,
)

_CONNECT_STEP_S = 0.05
_PIECE_BYTES = 1 << 18


class Link:
    """The connection of this process. `orphan_timeout_s`: how long it looks for a coordinator before it ends."""

    def __init__(self, directory: str, hello: Hello, orphan_timeout_s: float, give_up: Callable[[], None]) -> None:
        self._directory = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._hello = hello
        self._orphan_timeout_s = orphan_timeout_s
        self._give_up = give_up
        self._reading, self._sending = threading.Lock(), threading.Lock()
        self._items: deque[tuple[int, bytes]] = deque()
        self._running: set[int] = set()
        self._answers: deque[Answers] = deque()  # that are not stored yet
        self._number = 0
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        self._is_over = False
        self._socket, self._frames = self._connect(), FrameReader(TO_WORKER)
        self._send(hello)
        threading.Thread(target=self._watch, daemon=True).start()

    def take(self, count: int) -> list[tuple[int, bytes]]:
        """Wait for items, and return up to `count` of them; none when this worker is to end."""
        with self._reading:
            while not self._items and not self._is_over:
                self._receive()
            taken = [self._items.popleft() for _ in range(min(count, len(self._items)))]
            self._running.update(item for item, _ in taken)
            return [] if self._is_over else taken

    def answer(self, answers: list[Answer], batch_size: int, split_by: str = "") -> None:
        """Send the outcomes of items; again to the next coordinator if this one is gone."""
        with self._sending:
            self._number += 1
            message = Answers(self._number, answers, batch_size, split_by)
            self._answers.append(message)
            self._running.difference_update(answer.item for answer in answers)
            self._send(message)

    def send(self, message: Message, *, is_ready: bool = False) -> None:
        """Send a message to the coordinator, if there is one."""
        with self._sending:
            self._hello.is_ready |= is_ready
            self._send(message)

    def _send(self, message: Message) -> None:
        try:
            self._socket.sendall(frame(message))
        except OSError:
            pass  # whoever reads next finds the connection closed

    # ---- reading: the caller has the lock ----

    def _receive(self) -> None:
        """Wait for messages, and take them in."""
        try:
            size = self._socket.recv_into(self._piece)
        except OSError:
            size = 0
        if not size:
            self._reconnect()
            return
        for message in self._frames.feed(self._piece[:size]):
            if isinstance(message, Work):
                self._items.extend(message.items)
            elif isinstance(message, Acknowledged):
                while self._answers and self._answers[0].number <= message.number:
                    self._answers.popleft()
            elif isinstance(message, Leave):
                self._is_over = True

    def _watch(self) -> None:
        """Reconnect at once when the coordinator is gone, also while every thread is busy with an item."""
        while not self._is_over:
            watched = self._socket
            poll = select.poll()
            poll.register(watched.fileno(), select.POLLRDHUP)
            poll.poll()
            with self._reading:
                while self._socket is watched and not self._is_over:  # what it has sent last comes first
                    self._receive()

    def _reconnect(self) -> None:
        if self._is_over:
            return
        self._socket.close()
        connection = self._connect()
        with self._sending:
            said = (answer.item for message in self._answers for answer in message.answers)
            self._hello.items = (*said, *self._running, *(item for item, _ in self._items))
            self._socket, self._frames = connection, FrameReader(TO_WORKER)
            self._send(self._hello)
            for message in self._answers:
                self._send(message)

    def _connect(self) -> socket.socket:
        """Return a connection to the coordinator, once there is one of this user. Ends this process if none comes."""
        until_s = time.monotonic() + self._orphan_timeout_s
        while time.monotonic() < until_s:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                # by the descriptor of its directory: the path of a socket has 108 bytes at most
                connection.connect(f"/proc/self/fd/{self._directory}/{SOCKET}")
                if peer_of(connection)[1] == os.getuid():
                    return connection
            except OSError:
                pass
            connection.close()
            time.sleep(_CONNECT_STEP_S)
        self._give_up()
        raise SystemExit(1)
