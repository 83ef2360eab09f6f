"""Start shepherds, hand them attempts with their locks, receive their notices. Decides nothing.

A shepherd is used again: there are as many as attempts run at once, each started when an attempt needs it. Each is a
child in a session of its own, so no terminal signal reaches it; it inherits nothing but its end of a socket pair.
"""

from __future__ import annotations

import array
import errno
import marshal
import os
import selectors
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields

import gpusched
from gpusched.common.errors import GpuschedError
from gpusched.host.attempts.shepherd import MESSAGE_LIMIT

_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(gpusched.__file__)))
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gpusched.host.attempts.shepherd import main; "
    "main(int(sys.argv[2])); import os; os._exit(0)"
)
SEND_BUFFER_BYTES = 2 * MESSAGE_LIMIT
NOTICE_LIMIT_BYTES = 8192  # a directory and a few words


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
    queue_id: str = ""  # written into the record
    marker: tuple[bytes, ...] = ()  # NAME=value words that all processes of the attempt have in their environment


_WIRE_NAMES = {"directory": "dir", "time_limit_s": "time_limit", "grace_s": "grace"}


@dataclass(frozen=True, slots=True)
class ShepherdNotice:
    """A shepherd's notice that an attempt has ended. `error` says why the command could not be started at all."""

    directory: str
    error: str = ""


@dataclass(slots=True)
class _ShepherdProcess:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    directory: str = ""  # of its attempt; empty when idle


class Launcher:
    """The shepherds of one dispatcher.

    Their channels are registered with `selector`, each with a function as data that receives and calls `on_notice`.
    """

    def __init__(
        self, selector: selectors.BaseSelector, on_notice: Callable[[ShepherdNotice], None], error_log: str
    ) -> None:
        self._selector = selector
        self._on_notice = on_notice
        self._error_log = error_log
        self._idle: list[_ShepherdProcess] = []
        self._busy: dict[str, _ShepherdProcess] = {}

    def launch(self, order: Order, life: int, claims: list[int]) -> None:
        """Hand the attempt over. The caller still has to close its own descriptors."""
        words = {_WIRE_NAMES.get(each.name, each.name): getattr(order, each.name) for each in fields(order)}
        message = marshal.dumps({"op": "start", **words})
        fds = array.array("i", [life, *claims])
        while True:
            shepherd = self._idle.pop() if self._idle else self._start()
            try:
                shepherd.channel.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
                shepherd.directory = order.directory
                self._busy[order.directory] = shepherd
                return
            except OSError as error:
                self._drop(shepherd)
                if error.errno not in (errno.EPIPE, errno.ECONNRESET):  # an idle one was killed: take another
                    raise

    def add_claims(self, directory: str, claims: list[int]) -> None:
        """Hand the attempt's shepherd more claims, if a shepherd of this launcher has the attempt."""
        shepherd = self._busy.get(directory)
        if shepherd is not None:
            message = marshal.dumps({"op": "claims", "dir": directory})
            fds = array.array("i", claims)
            with suppress(OSError):  # it ends just now
                shepherd.channel.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])

    def _start(self) -> _ShepherdProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        ours.setblocking(False)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with theirs, os.fdopen(os.open(self._error_log, flags, 0o600), "ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, _PACKAGE_PARENT, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
            )
        shepherd = _ShepherdProcess(process, ours)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._receive(shepherd))
        return shepherd

    def _receive(self, shepherd: _ShepherdProcess) -> None:
        directory, error = shepherd.directory, ""
        try:
            data = shepherd.channel.recv(NOTICE_LIMIT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            text, reusable = marshal.loads(data)
            directory, _, error = text.partition("\0")
            self._busy.pop(directory, None)
            shepherd.directory = ""
            if reusable:
                self._idle.append(shepherd)
            else:
                self._disconnect(shepherd)
        else:
            self._drop(shepherd)
        if directory:
            self._on_notice(ShepherdNotice(directory, error))

    def _drop(self, shepherd: _ShepherdProcess) -> None:
        self._disconnect(shepherd)
        if shepherd in self._idle:
            self._idle.remove(shepherd)
        self._busy.pop(shepherd.directory, None)
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
        return None if shepherd is None else shepherd.process.pid

    def stop(self, directory: str) -> bool:
        """Ask the attempt's shepherd to end it. Return False if no shepherd of this launcher has it."""
        shepherd = self._busy.get(directory)
        if shepherd is None:
            return False
        with suppress(OSError):
            shepherd.channel.send(marshal.dumps({"op": "stop", "dir": directory}))
            return True
        return False

    def close(self) -> None:
        """Close all channels. Idle shepherds end; busy ones go on alone to the end of their attempts."""
        for shepherd in (*self._idle, *self._busy.values()):
            self._disconnect(shepherd)
        for shepherd in self._idle:
            shepherd.process.wait()
        for shepherd in self._busy.values():
            shepherd.process.returncode = 0  # it outlives us by design: nothing to wait for
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
