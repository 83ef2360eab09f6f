"""Start shepherds, and wait for none: each says itself that it is ready. Decides nothing.

A shepherd that cannot start, or is not ready in time, is the box's trouble: `error` says so until another one is ready.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import gpusched
from gpusched.host.attempts import attempt_dir, wire

_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(gpusched.__file__)))
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gpusched.host.attempts.shepherd import main; "
    f"main(int(sys.argv[2]), {wire.PROTOCOL}); import os; os._exit(0)"
)
SEND_BUFFER_BYTES = 2 * wire.MESSAGE_LIMIT
READY_WITHIN_S = 30.0
LAST_WORDS_BYTES = 4096
AGAIN_FIRST_S, AGAIN_MAX_S = 1.0, 30.0  # pauses between two tries while none can be started


@dataclass(slots=True, eq=False)
class ShepherdProcess:
    """A shepherd, and our end of the channel to it."""

    process: subprocess.Popen[bytes] | None  # None: that of an earlier dispatcher
    channel: socket.socket
    errors_from: int = 0  # the size of the error log when it was started
    late_s: float = math.inf  # when it is given up if it is not ready, in monotonic seconds
    directory: str = ""  # of its attempt; empty when idle

    def listen(self, selector: selectors.BaseSelector, hear: Callable[[ShepherdProcess], None]) -> None:
        """Have `hear` called for each of its messages."""
        selector.register(self.channel, selectors.EVENT_READ, lambda: hear(self))

    def disconnect(self, selector: selectors.BaseSelector) -> None:
        selector.unregister(self.channel)
        self.channel.close()

    def collect(self) -> None:
        """Wait a moment for its end, since its channel has ended."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.5)

    def end(self) -> None:
        """Wait for its end, since its channel has ended; kill it if it does not come (it may be stopped)."""
        self.collect()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.collect()

    def abandon(self) -> None:
        """Let it go on alone: by design it outlives us, and there is nothing to wait for."""
        if self.process is not None:
            self.process.returncode = 0


class Starter:
    """`on_ready` gets each shepherd that is ready, with a channel that nobody listens to."""

    def __init__(
        self, selector: selectors.BaseSelector, on_ready: Callable[[ShepherdProcess], None], error_log: str
    ) -> None:
        self.error = ""  # why no shepherd can be started
        self._selector = selector
        self._on_ready = on_ready
        self._error_log = error_log
        self._starting: list[ShepherdProcess] = []
        self._pause_s = 0.0  # before the next try
        self._again_s: float | None = None

    def start(self, count: int, now_s: float) -> None:
        """Have so many shepherds on their way, unless none can be started."""
        for _ in range(0 if self.error else count - len(self._starting)):
            self._start(now_s)

    def tend(self, now_s: float) -> None:
        """Give up those that are not ready in time; while none can be started, try again when it is time."""
        for shepherd in [each for each in self._starting if now_s >= each.late_s]:
            shepherd.end()
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
        shepherd.listen(self._selector, self._greet)
        self._starting.append(shepherd)

    def _start_process(self, ours: socket.socket, theirs: int, now_s: float) -> ShepherdProcess:
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
            return ShepherdProcess(process, ours, os.fstat(errors.fileno()).st_size, now_s + READY_WITHIN_S)

    def _greet(self, shepherd: ShepherdProcess) -> None:
        """Take the first word of a shepherd, or note its end."""
        try:
            received = wire.receive(shepherd.channel)
        except BlockingIOError:
            return
        version = received[0].get("version") if received else None
        if version == wire.PROTOCOL:
            self._starting.remove(shepherd)
            self._selector.unregister(shepherd.channel)
            self.error, self._pause_s = "", 0.0
            self._on_ready(shepherd)
        else:
            versions = f"it speaks version {version}, and this dispatcher {wire.PROTOCOL}"
            replaced = f"{versions}: gpusched was replaced; stop this run, start it again"
            self._give_up(shepherd, replaced if received else "")

    def _give_up(self, shepherd: ShepherdProcess, why: str) -> None:
        """Note that this shepherd could not be started."""
        self._starting.remove(shepherd)
        shepherd.disconnect(self._selector)
        shepherd.collect()
        code = shepherd.process and shepherd.process.returncode
        why = why or self.last_words(shepherd) or f"it ended without a word, with exit status {code}"
        self.error = f"no shepherd can be started: {why}"

    def last_words(self, shepherd: ShepherdProcess) -> str:
        """Return the last line that a shepherd has written before its end; nothing if it was killed."""
        words = attempt_dir.read_part(self._error_log, LAST_WORDS_BYTES, at_end=True, since=shepherd.errors_from)
        lines = (words or b"").decode("utf-8", "replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """Give up those that are on their way: they end when they see that nobody is there."""
        while self._starting:
            shepherd = self._starting.pop()
            shepherd.disconnect(self._selector)
            shepherd.abandon()
