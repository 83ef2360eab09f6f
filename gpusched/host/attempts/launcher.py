"""Start shepherds, hand them attempts with their locks, receive their notices. Decides nothing.

A shepherd is used again: there are as many as attempts run at once, each started when an attempt needs it. Each is a
child in a session of its own, so no terminal signal reaches it; it inherits nothing but its end of a socket pair.
An attempt is handed only to a shepherd that has said that it is ready. One that cannot start, or is not ready in time,
is the box's trouble: `error` says so until another one is ready.
"""

from __future__ import annotations

import errno
import math
import os
import selectors
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

import gpusched
from gpusched.common.errors import GpuschedError
from gpusched.host.attempts import attempt_dir, wire

_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(gpusched.__file__)))
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gpusched.host.attempts.shepherd import main; "
    f"main(int(sys.argv[2]), {wire.PROTOCOL}); import os; os._exit(0)"
)
SEND_BUFFER_BYTES = 2 * wire.MESSAGE_LIMIT
READY_WITHIN_S = 30.0
LAST_WORDS_BYTES = 4096
AGAIN_FIRST_S, AGAIN_MAX_S = 1.0, 30.0  # pauses between two tries to start a shepherd while none can be started


@dataclass(frozen=True, slots=True)
class Order:
    """The order to run one attempt, as a shepherd gets it."""

    directory: str
    argv: tuple[bytes, ...]
    cwd: bytes
    environment: dict[bytes, bytes]  # added to what the shepherd inherited
    log: str
    error_log: str = ""  # empty: stdout and stderr share `log`
    time_limit_s: float | None = None
    grace_s: float = 10.0
    leftovers: str = "wait"  # wait | stop
    marker: tuple[bytes, ...] = ()  # NAME=value words that all processes of the attempt have in their environment


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


@dataclass(slots=True)
class _ShepherdProcess:
    process: subprocess.Popen[bytes] | None  # None: that of an earlier dispatcher
    channel: socket.socket
    errors_from: int = 0  # the size of the error log when it was started
    late_s: float = math.inf  # when it is given up if it is not ready, in monotonic seconds
    directory: str = ""  # of its attempt; empty when idle


class Launcher:
    """The shepherds of one dispatcher.

    Their channels are registered with `selector`, each with a function as data that receives and calls `on_notice`.
    `error` says why no shepherd can be started; it is empty while they can.
    """

    def __init__(
        self, selector: selectors.BaseSelector, on_notice: Callable[[ShepherdNotice], None], error_log: str
    ) -> None:
        self.error = ""
        self._selector = selector
        self._on_notice = on_notice
        self._error_log = error_log
        self._starting: list[_ShepherdProcess] = []
        self._idle: list[_ShepherdProcess] = []
        self._busy: dict[str, _ShepherdProcess] = {}
        self._pause_s = 0.0  # before the next try to start one
        self._again_s: float | None = None

    # ---- starting shepherds ----

    def ready(self, count: int, now_s: float) -> int:
        """Return how many of `count` attempts can be handed over now; start the shepherds that the others need."""
        for _ in range(0 if self.error else count - len(self._idle) - len(self._starting)):
            self._start(now_s)
        return min(count, len(self._idle))

    @property
    def is_broken(self) -> bool:
        """True if no attempt can be handed over, now and for a while."""
        return bool(self.error) and not self._idle

    def tend(self, now_s: float) -> None:
        """Give up shepherds that are not ready in time; while none can be started, try again when it is time."""
        for shepherd in [each for each in self._starting if now_s >= each.late_s]:
            if shepherd.process is not None:
                shepherd.process.kill()
            self._give_up(shepherd, f"not ready within {READY_WITHIN_S:g} s")
        if not self.error or self._starting:
            return
        if self._again_s is None:  # one has just failed
            self._pause_s = min(AGAIN_MAX_S, max(AGAIN_FIRST_S, 2 * self._pause_s))
            self._again_s = now_s + self._pause_s
        elif now_s >= self._again_s:
            self._again_s = None
            self._start(now_s)

    def deadline_s(self) -> float | None:
        """Return when tend() has something to do."""
        if self._starting or not self.error:
            return min((each.late_s for each in self._starting), default=None)
        return self._again_s or 0.0

    def _start(self, now_s: float) -> None:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                shepherd = self._start_process(ours, theirs.fileno(), now_s)
        except OSError as error:
            self.error = f"no shepherd can be started: {error}"
            return
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        ours.setblocking(False)
        self._listen_to(shepherd)
        self._starting.append(shepherd)

    def _listen_to(self, shepherd: _ShepherdProcess) -> None:
        self._selector.register(shepherd.channel, selectors.EVENT_READ, lambda: self._receive(shepherd))

    def _start_process(self, ours: socket.socket, theirs: int, now_s: float) -> _ShepherdProcess:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self._error_log, flags, 0o600), "ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _PACKAGE_PARENT, str(theirs)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[theirs],
                start_new_session=True,
                cwd="/",
            )
            return _ShepherdProcess(process, ours, os.fstat(errors.fileno()).st_size, now_s + READY_WITHIN_S)

    def _give_up(self, shepherd: _ShepherdProcess, why: str = "") -> None:
        """Note that this shepherd could not be started."""
        self._drop(shepherd)
        why = why or self._last_words(shepherd) or "it ended without a word"
        self.error = f"no shepherd can be started: {why}"

    def _last_words(self, shepherd: _ShepherdProcess) -> str:
        """Return the last line that a shepherd has written before its end; nothing if it was killed."""
        words = attempt_dir.read_part(self._error_log, LAST_WORDS_BYTES, at_end=True, since=shepherd.errors_from)
        lines = (words or b"").decode("utf-8", "replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")

    # ---- handing over and taking over ----

    def adopt(self, directory: str, mark: Mapping[str, str]) -> None:
        """Ask the shepherd of an attempt that an earlier dispatcher has launched for its claims, if it listens."""
        channel = wire.connect(mark["socket"]) if "socket" in mark else None
        if channel is not None:
            shepherd = _ShepherdProcess(None, channel, directory=directory)
            self._listen_to(shepherd)
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

    def _receive(self, shepherd: _ShepherdProcess) -> None:
        try:
            received = wire.receive(shepherd.channel)
        except BlockingIOError:
            return
        message, fds = received or (None, [])
        if shepherd in self._starting:
            self._greet(shepherd, message)
        elif isinstance(message, dict):
            self._note_answer(shepherd, message, fds)
        else:
            self._note_end(shepherd, message)

    def _note_answer(self, shepherd: _ShepherdProcess, message: dict[str, Any], fds: list[int]) -> None:
        directory = shepherd.directory
        if message["op"] == "claims":
            self._on_notice(ShepherdNotice(directory, claims=tuple(fds)))
        elif (message["version"], message["dir"]) != (wire.PROTOCOL, directory):
            self._drop(shepherd)  # it speaks otherwise, or of another attempt: it is known by its files only
        elif message["record"]:
            record = {key: str(value) for key, value in message["record"].items() if value is not None}
            self._on_notice(ShepherdNotice(directory, record=record))

    def _note_end(self, shepherd: _ShepherdProcess, message: tuple[str, bool] | None) -> None:
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
                self._disconnect(shepherd)
        else:
            self._drop(shepherd)
            if shepherd.process is not None and (words := self._last_words(shepherd)):
                crash = f"its shepherd ended before it: {words}"
        if directory:
            self._on_notice(ShepherdNotice(directory, error, crash))

    def _greet(self, shepherd: _ShepherdProcess, message: dict[str, object] | None) -> None:
        """Take the first message of a shepherd: it is ready; None: it has ended."""
        if message and message.get("version") == wire.PROTOCOL:
            self._starting.remove(shepherd)
            self._idle.append(shepherd)
            self.error, self._pause_s = "", 0.0
        else:
            versions = message and f"it speaks version {message.get('version')}, and this dispatcher {wire.PROTOCOL}"
            self._give_up(
                shepherd, f"{versions}: gpusched was replaced; stop this run, start it again" if versions else ""
            )

    def _drop(self, shepherd: _ShepherdProcess) -> None:
        self._disconnect(shepherd)
        for group in (self._starting, self._idle):
            if shepherd in group:
                group.remove(shepherd)
        self._busy.pop(shepherd.directory, None)
        if shepherd.process is not None:
            with suppress(subprocess.TimeoutExpired):
                shepherd.process.wait(timeout=0.5)  # the channel's end is the process's end

    def _disconnect(self, shepherd: _ShepherdProcess) -> None:
        self._selector.unregister(shepherd.channel)
        shepherd.channel.close()

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

    def acknowledge(self, directory: str) -> None:
        """Tell the attempt's shepherd that its end is booked, so that it need not write it any more."""
        self._say("ack", directory)

    def close(self) -> None:
        """Close all channels. Idle shepherds end; busy ones go on alone to the end of their attempts."""
        for shepherd in (*self._idle, *self._starting, *self._busy.values()):
            self._disconnect(shepherd)
        for process in [each.process for each in self._idle if each.process is not None]:
            process.wait()
        for process in [each.process for each in (*self._starting, *self._busy.values()) if each.process is not None]:
            process.returncode = 0  # it outlives us by design, or has not begun: nothing to wait for
        for group in (self._idle, self._starting, self._busy):
            group.clear()


def find_shell(name: str) -> tuple[bytes, ...]:
    """Return the words before a command: `bash -o pipefail -c` where there is bash, else `sh -c`."""
    path = shutil.which(name) or (shutil.which("sh") if name == "bash" else None)
    if path is None:
        raise GpuschedError(f"no shell {name!r} on PATH", where="--shell", hint="name a shell that is installed")
    if os.path.basename(path) in ("bash", "zsh", "ksh"):
        return (os.fsencode(path), b"-o", b"pipefail", b"-c")
    return (os.fsencode(path), b"-c")
