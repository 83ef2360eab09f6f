"""Start shepherds, hand them attempts with their locks, receive their notices. Decides nothing.

A shepherd is used again: there are as many as attempts run at once, each started when an attempt needs it. Each is a
child in a session of its own, so no terminal signal reaches it; it inherits nothing but its end of a socket pair.
An attempt is handed only to a shepherd that has said that it is ready.
"""

from __future__ import annotations

import errno
import os
import selectors
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.host.attempts import wire
from gpusched.host.attempts.starter import ShepherdProcess, Starter


@dataclass(frozen=True, slots=True)
class Order:
    """The order to run one attempt, as a shepherd gets it."""

    directory: str
    argv: tuple[bytes, ...]
    cwd: bytes
    environment: dict[bytes, bytes]  # added to `inherited`
    log: str
    error_log: str = ""  # empty: stdout and stderr share `log`
    time_limit_s: float | None = None
    grace_s: float = 10.0
    leftovers: str = "wait"  # wait | stop
    queue_id: str = ""  # written into the record
    inherited: dict[bytes, bytes] | None = None  # None: what the shepherd inherited
    marker: tuple[bytes, ...] = ()  # NAME=value words that all processes of the attempt have in their environment
    fence: str = ""  # the file with the deadline of its lease; empty: it has none


_WIRE_NAMES = {"directory": "dir", "time_limit_s": "time_limit", "grace_s": "grace"}


@dataclass(frozen=True, slots=True)
class ShepherdNotice:
    """A shepherd's notice: its attempt has ended, unless there are claims.

    `error` says why the command could not be started at all, `crash` how the shepherd has ended without a record.
    """

    directory: str
    error: str = ""
    crash: str = ""
    claims: tuple[int, ...] = ()  # duplicates of those that it holds
    record: Mapping[str, str] = field(default_factory=dict)  # while it cannot be written


class Launcher:
    """The shepherds of one dispatcher.

    Their channels are registered with `selector`, each with a function as data that receives and calls `on_notice`.
    """

    def __init__(
        self, selector: selectors.BaseSelector, on_notice: Callable[[ShepherdNotice], None], error_log: str
    ) -> None:
        self.starter = Starter(selector, self._take_in, error_log)
        self._selector = selector
        self._on_notice = on_notice
        self._idle: list[ShepherdProcess] = []
        self._busy: dict[str, ShepherdProcess] = {}

    def _take_in(self, shepherd: ShepherdProcess) -> None:
        shepherd.listen(self._selector, self._receive)
        self._idle.append(shepherd)

    def ready(self, count: int, now_s: float) -> int:
        """Return how many of `count` attempts can be handed over now; start the shepherds that the others need."""
        self.starter.start(count - len(self._idle), now_s)
        return min(count, len(self._idle))

    @property
    def is_broken(self) -> bool:
        """True if no attempt can be handed over, now and for a while."""
        return bool(self.starter.error) and not self._idle

    # ---- handing over and taking over ----

    def adopt(self, directory: str, mark: Mapping[str, str]) -> None:
        """Ask the shepherd of an attempt that an earlier dispatcher has launched for its claims, if it listens."""
        channel = wire.connect(mark["socket"]) if "socket" in mark else None
        if channel is not None:
            shepherd = ShepherdProcess(None, channel, directory=directory)
            shepherd.listen(self._selector, self._receive)
            self._busy[directory] = shepherd
            self._say("claims", directory)

    def _say(self, op: str, directory: str) -> bool:
        """Send a word to the shepherd of an attempt; return False if none of this launcher has it."""
        shepherd = self._busy.get(directory)
        if shepherd is None:
            return False
        with suppress(OSError):
            wire.send(shepherd.channel, {"op": op, "dir": directory})
            return True
        return False

    def launch(self, order: Order, life: int, claims: list[int]) -> None:
        """Hand the attempt to a ready shepherd. The caller still has to close its own descriptors.

        Raises OSError when there is none any more.
        """
        words = {_WIRE_NAMES.get(each.name, each.name): getattr(order, each.name) for each in fields(order)}
        while self._idle:
            shepherd = self._idle.pop()
            try:
                wire.send(shepherd.channel, {"op": "start", **words}, [life, *claims])
                shepherd.directory = order.directory
                self._busy[order.directory] = shepherd
                return
            except OSError as error:
                self._drop(shepherd)
                if error.errno not in (errno.EPIPE, errno.ECONNRESET):  # an idle one was killed: take another
                    raise
        raise OSError(errno.EAGAIN, "the shepherds that were ready are gone")

    def _receive(self, shepherd: ShepherdProcess) -> None:
        try:
            received = wire.receive(shepherd.channel)
        except BlockingIOError:
            return
        message, fds = received or (None, [])
        if isinstance(message, dict):
            self._note_answer(shepherd, message, fds)
        else:
            self._note_end(shepherd, message)

    def _note_answer(self, shepherd: ShepherdProcess, message: dict[str, Any], fds: list[int]) -> None:
        directory = shepherd.directory
        if message["op"] == "claims":
            self._on_notice(ShepherdNotice(directory, claims=tuple(fds)))
        elif (message["version"], message["dir"]) != (wire.PROTOCOL, directory):
            self._drop(shepherd)  # it speaks otherwise, or of another attempt: it is known by its files only
        elif message["record"]:
            record = {key: str(value) for key, value in message["record"].items() if value is not None}
            self._on_notice(ShepherdNotice(directory, record=record))

    def _note_end(self, shepherd: ShepherdProcess, message: tuple[str, bool] | None) -> None:
        """Note the end of an attempt; None: its shepherd has ended."""
        directory, error, crash = shepherd.directory, "", ""
        if message:
            text, reusable = message
            directory, _, error = text.partition("\0")
            self._busy.pop(directory, None)
            shepherd.directory = ""
            if reusable and shepherd.process is not None:
                self._idle.append(shepherd)
            else:
                shepherd.disconnect(self._selector)
        else:
            self._drop(shepherd)
            if shepherd.process is not None and (words := self.starter.last_words(shepherd)):
                crash = f"its shepherd ended before it: {words}"
        if directory:
            self._on_notice(ShepherdNotice(directory, error, crash))

    def _drop(self, shepherd: ShepherdProcess) -> None:
        shepherd.disconnect(self._selector)
        if shepherd in self._idle:
            self._idle.remove(shepherd)
        self._busy.pop(shepherd.directory, None)
        shepherd.collect()

    def has(self, directory: str) -> bool:
        """Return True if a shepherd of this launcher has the attempt."""
        return directory in self._busy

    def pid(self, directory: str) -> int | None:
        """Return the pid of the shepherd of this launcher that has the attempt, or None."""
        shepherd = self._busy.get(directory)
        return None if shepherd is None or shepherd.process is None else shepherd.process.pid

    def stop(self, directory: str) -> bool:
        """Ask the attempt's shepherd to end it. Return False if no shepherd of this launcher has it."""
        return self._say("stop", directory)

    def add_claims(self, directory: str, claims: list[int]) -> None:
        """Hand the attempt's shepherd more claims, which it keeps beside those that it has."""
        shepherd = self._busy.get(directory)
        if shepherd is not None:
            with suppress(OSError):
                wire.send(shepherd.channel, {"op": "claims", "dir": directory}, claims)

    def acknowledge(self, directory: str) -> None:
        """Tell the attempt's shepherd that its end is booked, so that it need not write it any more."""
        self._say("ack", directory)

    def close(self) -> None:
        """Close all channels and end the idle shepherds; busy ones go on alone to the end of their attempts."""
        self.starter.close()
        for shepherd in (*self._idle, *self._busy.values()):
            shepherd.disconnect(self._selector)
        for shepherd in self._idle:
            shepherd.end()
        for shepherd in self._busy.values():
            shepherd.abandon()
        self._idle.clear()
        self._busy.clear()


def find_shell(name: str) -> tuple[bytes, ...]:
    """Return the words before a command: `bash -o pipefail -c` where there is bash, else `sh -c`."""
    path = shutil.which(name) or (shutil.which("sh") if name == "bash" else None)
    if path is None:
        raise GpuschedError(f"no shell {name!r} on PATH", where="--shell", hint="name a shell that is installed")
    if os.path.basename(path) in ("bash", "zsh", "ksh"):
        return (os.fsencode(path), b"-o", b"pipefail", b"-c")
    return (os.fsencode(path), b"-c")
