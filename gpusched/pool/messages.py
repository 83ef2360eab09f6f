"""The messages between the coordinator of a pool and its workers: their values and their frames. Opens no socket.

A frame is the length of the message in four bytes, and the message. Items and results travel as JSON that the
coordinator never looks into.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import msgspec

CPU = "cpu"  # the device of workers without a GPU
SOCKET = "pool.sock"  # in the local directory of the queue
_LENGTH = struct.Struct(">I")


class Message(msgspec.Struct, array_like=True, tag=True):
    """A message. Its class says what it is about."""


class Hello(Message):
    """The first message of a worker, also to the next coordinator: who it is, and which items it still has."""

    job: int
    device: str
    is_ready: bool
    items: tuple[int, ...] = ()


class Ready(Message):
    """The worker has loaded its models, and how long that took."""

    load_s: float


class Failure(Message):
    """The reason why there is no result: `kind` is error or oom."""

    kind: str
    error: str
    traceback: str = ""


class Answer(Message):
    """The outcome of an item: its result as JSON, or why there is none."""

    item: int
    result: bytes
    failure: Failure | None = None


class Answers(Message):
    """The outcomes of items, in the order in which they ended. `number` counts these messages of a worker."""

    number: int
    answers: list[Answer]
    batch_size: int = 0  # once an out-of-memory has made it smaller
    split_by: str = ""  # the error of a whole batch, after which its items were tried one by one


class Broken(Message):
    """The worker cannot go on, and why: `stage` is load, item, or first: at its first item, which may be innocent."""

    stage: str
    failure: Failure


class Work(Message):
    """Items to work on, as ids and JSON."""

    items: list[tuple[int, bytes]]


class Acknowledged(Message):
    """The answers up to this number are stored; the worker may forget them."""

    number: int


class Leave(Message):
    """There is no more work for this worker: tear down, and end."""


_encoder = msgspec.msgpack.Encoder()
TO_COORDINATOR = msgspec.msgpack.Decoder(Hello | Ready | Answers | Broken)
TO_WORKER = msgspec.msgpack.Decoder(Work | Acknowledged | Leave)


def json_bytes(value: Any) -> bytes:
    """Return lists, dicts and numbers as JSON; those that JSON has not as Python writes them: NaN, Infinity."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def frame(message: Message) -> bytes:
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Messages from the pieces in which a socket delivers them."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        self._buffer = bytearray()
        self._decode = decoder.decode

    def feed(self, data: bytes | memoryview) -> list[Any]:
        """Return the messages that are complete with this piece. Raises msgspec.DecodeError for what is none."""
        self._buffer += data
        found: list[Any] = []
        at = 0
        with memoryview(self._buffer) as view:
            while len(view) - at >= _LENGTH.size:
                end = at + _LENGTH.size + _LENGTH.unpack_from(view, at)[0]
                if end > len(view):
                    break
                found.append(self._decode(view[at + _LENGTH.size : end]))
                at = end
        del self._buffer[:at]
        return found


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the pid and the uid of the process at the other end of a Unix socket."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
