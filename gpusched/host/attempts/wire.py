"""The messages between a dispatcher and a shepherd: marshalled values, with descriptors beside them. Decides nothing.

Each message is one packet of a SOCK_SEQPACKET socket. A shepherd is started with one end of a pair; and it listens
on an abstract socket whose random name stands in the start mark, so that the next dispatcher can speak to it too. Both
sides check that the other one is the same user. What may be said:

| op | from | with | means |
|---|---|---|---|
| `start` | dispatcher, by the pair | `life`, the claims | run this attempt |
| `stop` | dispatcher | | end it |
| `claims` | dispatcher | new claims | hold these too |
| `claims` | dispatcher | nothing | send me duplicates of the claims; the answer is `claims` |
| `ack` | dispatcher | | its end is booked: nothing has to be written any more |
| `status` | dispatcher | nothing | tell how it is; the answer is `status`, which also greets who connects |
| `resident` | a child of the shepherd | nothing | this process stays for the attempts to come: wait for it with none |
| `status` | shepherd | | its version, its attempt, and the record if it has ended and cannot be written |
| a pair | shepherd | | the attempt has ended: its directory (and an error), and whether another one can follow |
"""

from __future__ import annotations

import array
import marshal
import os
import socket

TYPE_CHECKING = False  # a shepherd imports this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PROTOCOL = 2  # 1: no greeting, no socket to connect to
MESSAGE_LIMIT = 1 << 18
INLINE_MAX_BYTES = MESSAGE_LIMIT // 2  # what is larger goes through a file in memory
FDS_LIMIT = 250
FD_BYTES = 4
_IN_FILE = "in a file"


def send(channel: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Send one message. Raises OSError."""
    data = marshal.dumps(message)
    if len(data) <= INLINE_MAX_BYTES:
        _send(channel, data, fds)
        return
    with open(os.memfd_create("message", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(data)
        _send(channel, marshal.dumps(_IN_FILE), (file.fileno(), *fds))


def _send(channel: socket.socket, data: bytes, fds: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sendmsg([data], rights)


def receive(channel: socket.socket) -> tuple[Any, list[int]] | None:
    """Return the next message and its descriptors (close-on-exec); None if the other end is gone."""
    try:
        room = socket.CMSG_SPACE(FDS_LIMIT * FD_BYTES)
        data, ancillary, _, _ = channel.recvmsg(MESSAGE_LIMIT, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    if not data:
        return None
    fds: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += memoryview(content[: len(content) // FD_BYTES * FD_BYTES]).cast("i")
    message = marshal.loads(data)
    if message == _IN_FILE:
        with open(fds.pop(0), "rb") as file:
            message = marshal.loads(os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0))
    return message, fds


def listen() -> tuple[socket.socket, str]:
    """Return a listening socket, and its name for connect()."""
    name = f"gpusched-{os.urandom(16).hex()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{name}")
    listener.listen(8)
    listener.setblocking(False)
    return listener, name


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the connection of who waits, if that is the same user."""
    try:
        channel, _ = listener.accept()
    except OSError:
        return None
    return _checked(channel)


def connect(name: str) -> socket.socket | None:
    """Connect to the shepherd that listens by this name; None if there is none, or it is another user's."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.setblocking(False)
    try:
        channel.connect(f"\0{name}")
    except OSError:
        channel.close()
        return None
    return _checked(channel)


def _checked(channel: socket.socket) -> socket.socket | None:
    """Return the channel, never blocking, if its other end is of this user."""
    channel.setblocking(False)
    if _credentials(channel)[1] == os.geteuid():
        return channel
    channel.close()
    return None


def pid_of(channel: socket.socket) -> int:
    """Return the process that has connected."""
    return _credentials(channel)[0]


def _credentials(channel: socket.socket) -> memoryview[int]:
    """Return the pid, the user and the group of the other end."""
    return memoryview(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * FD_BYTES)).cast("I")
