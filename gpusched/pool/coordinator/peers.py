"""The connections of a coordinator to its workers: one socket that only this user may reach, and one loop over all."""

from __future__ import annotations

import os
import selectors
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.processes import process_start
from gpusched.host.store.pool.items import OpenItem
from gpusched.pool.messages import SOCKET, TO_COORDINATOR, Answers, FrameReader, Message, frame, peer_of

_PIECE_BYTES = 1 << 18


@dataclass(eq=False)
class Peer:
    """A worker that is connected, and its lease: the items that it has, in the order in which they were sent."""

    connection: socket.socket
    pid: int
    began: int | None  # the start of its process
    met_at: float = field(default_factory=time.time)
    job: int = 0
    device: str = ""
    is_ready: bool = False  # its models are loaded
    has_failed_load: bool = False  # and it has said why
    is_alone: bool = False  # it has one item, and gets no other one beside it
    is_leaving: bool = False
    lease: dict[int, OpenItem] = field(default_factory=dict)
    done: int = 0  # items
    item_s: float = 1.0  # the mean time of an item lately; at first nothing is sent ahead
    idle_until: float = 0.0  # or busy with the items before
    begun: dict[int, float] = field(default_factory=dict)  # the items that run now, and since when
    batch_size: int = 0  # once an out-of-memory has made it smaller
    answers: int = 0  # the number of its newest message, and of the newest one that is stored
    stored: int = 0
    ended_by: str = ""  # the reason for its end, where that is known
    late_item: int | None = None  # for which it was ended
    frames: FrameReader = field(default_factory=lambda: FrameReader(TO_COORDINATOR))
    out: bytearray = field(default_factory=bytearray)

    def note(self, message: Answers, now: float) -> None:
        """Take note of the time that the answers took."""
        self.answers, self.batch_size = message.number, message.batch_size
        self.done += len(message.answers)
        self.item_s += 0.2 * ((now - self.idle_until) / len(message.answers) - self.item_s)
        self.idle_until = now
        for answer in message.answers:
            self.begun.pop(answer.item, None)


class Peers:
    """All connections. Use it as a context manager."""

    def __init__(self, directory: str) -> None:
        """Listen in this directory, which must be this user's alone. A socket of an earlier coordinator is replaced."""
        status = os.stat(directory)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            hint = f"chmod 700 {directory}, or choose another --log-dir"
            raise GpuschedError("others can reach it", where=directory, hint=hint, exit_code=EXIT_CANNOT_WORK)
        self._directory = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=self._directory)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        # by the descriptor of its directory: the path of a socket has 108 bytes at most
        self._listener.bind(f"/proc/self/fd/{self._directory}/{SOCKET}")
        self._listener.listen(256)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        self.all: dict[Peer, None] = {}  # in the order in which they came

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *error: object) -> None:
        for peer in list(self.all):
            self._close(peer)
        self._selector.close()
        self._listener.close()
        with suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=self._directory)
        os.close(self._directory)

    def wait(self, timeout_s: float) -> Iterator[tuple[Peer, list[Message] | None]]:
        """Yield the messages that have come, of one worker after the other; None when its connection has ended."""
        for key, events in self._selector.select(timeout_s):
            peer = key.data
            if peer is None:
                self._accept()
            elif peer in self.all:
                if events & selectors.EVENT_WRITE:
                    self._flush(peer)
                if events & selectors.EVENT_READ:
                    yield peer, self._read(peer)

    def send(self, peer: Peer, message: Message) -> None:
        """Send a message, as soon as the worker takes it."""
        data = frame(message)
        if not peer.out:
            with suppress(OSError):  # it takes no more now, or the connection has ended, as the next read finds
                data = data[peer.connection.send(data) :]
            if not data:
                return
            self._selector.modify(peer.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
        peer.out += data

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            pid, uid = peer_of(connection)
            if uid != os.getuid():
                connection.close()
                return
            connection.setblocking(False)
            peer = Peer(connection, pid, process_start(pid))
            self.all[peer] = None
            self._selector.register(connection, selectors.EVENT_READ, peer)

    def _read(self, peer: Peer) -> list[Message] | None:
        try:
            if size := peer.connection.recv_into(self._piece):
                return peer.frames.feed(self._piece[:size])
        except BlockingIOError:
            return []
        except (OSError, msgspec.DecodeError):
            pass
        self._close(peer)
        return None

    def _flush(self, peer: Peer) -> None:
        try:
            while peer.out:
                del peer.out[: peer.connection.send(peer.out)]
            self._selector.modify(peer.connection, selectors.EVENT_READ, peer)
        except BlockingIOError:
            pass
        except OSError:
            peer.out.clear()  # the connection has ended, as the next read finds

    def _close(self, peer: Peer) -> None:
        del self.all[peer]
        self._selector.unregister(peer.connection)
        peer.connection.close()
