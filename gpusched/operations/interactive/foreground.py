"""A command on this terminal. Its parent stays in the same process group, and the keys end only the command."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence

from gpusched.common import processes
from gpusched.common.errors import GpuschedError
from gpusched.common.processes import has_program
from gpusched.host.attempts.running_command import pass_on

_LEFT_TO_THE_COMMAND = (  # which gets them from the terminal too; a handler of ours is the default one of the command
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
)
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)  # which Python ignores
HANG_UP_AFTER_S = 1.0  # from TERM, which a shell ignores, to HUP
NOT_FOUND, NOT_STARTED = 127, 126  # as of a shell


class SignalPipe:
    """Ends a wait when a signal comes that has a handler. For the main thread."""

    def __init__(self) -> None:
        self._wake, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.is_terminated = False  # somebody has sent TERM to this process
        signal.signal(signal.SIGTERM, self._note_term)

    def _note_term(self, *_: object) -> None:
        self.is_terminated = True

    def wait(self, timeout_s: float, fd: int | None) -> None:
        """Wait until a signal comes, `fd` is readable, or the time is over."""
        ready, _, _ = select.select([self._wake, *([] if fd is None else [fd])], [], [], max(0.0, timeout_s))
        if self._wake in ready:
            os.read(self._wake, 4096)


def refuse_missing(program: str) -> None:
    """Raise GpuschedError if there is no such program, before somebody waits for GPUs for it."""
    if not has_program(program):
        number = errno.EACCES if "/" in program and os.path.exists(program) else errno.ENOENT
        raise _not_started(program, OSError(number, os.strerror(number)))


def _not_started(program: str, error: OSError) -> GpuschedError:
    code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED
    return GpuschedError(f"cannot be started: {error.strerror}", where=program, exit_code=code)


class Foreground:
    """A command from its start to its end, and the signals of this process meanwhile. For the main thread."""

    def __init__(self, argv: list[str], environment: Mapping[bytes, bytes], fds: Sequence[int]) -> None:
        """Start it with the descriptors `fds` at high numbers. Raises GpuschedError if it cannot be started."""
        self.signals = SignalPipe()
        for number in _LEFT_TO_THE_COMMAND:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _ignore)
        signal.signal(signal.SIGCHLD, _ignore)
        try:
            self.pid = os.posix_spawnp(argv[0], argv, environment, file_actions=pass_on(fds), setsigdef=_RESET)
        except OSError as error:
            raise _not_started(argv[0], error) from None
        self._stopping_s: float | None = None

    def poll(self, until_at: float | None) -> int | None:
        """Return its wait status if it has ended. If it was stopped, stop until both go on, or until `until_at`."""
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            self._stop_too(until_at)
            return None
        return status if pid else None

    def _stop_too(self, until_at: float | None) -> None:
        """Stop this process, as the shell expects of a job; one of its own continues it when its time is over."""
        alarm = None if until_at is None else _continue_at(until_at)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, _ignore)
        if alarm is not None:
            os.kill(alarm, signal.SIGKILL)
            os.waitpid(alarm, 0)
        if until_at is None or time.time() < until_at:
            os.kill(self.pid, signal.SIGCONT)

    def stop(self, grace_s: float, marker: tuple[bytes, ...]) -> None:
        """Have its processes end: TERM, then HUP, and KILL after the grace time. Call it again until it has ended."""
        now_s = time.monotonic()
        self._stopping_s, is_first = self._stopping_s or now_s, self._stopping_s is None
        numbers = [signal.SIGTERM, signal.SIGCONT] if is_first else []
        if now_s >= self._stopping_s + HANG_UP_AFTER_S:
            numbers = [signal.SIGHUP]
        if now_s >= self._stopping_s + grace_s:
            numbers = [signal.SIGKILL]
        for pid in self.family(marker) if numbers else ():
            for number in numbers:
                processes.send_signal(pid, number)

    def family(self, marker: tuple[bytes, ...]) -> list[int]:
        """Return its living processes, as far as they can be found."""
        return list(dict.fromkeys([self.pid, *processes.descendants(self.pid), *processes.marked_processes(marker)]))


def _continue_at(until_at: float) -> int:
    """Start a process, in a session of its own, that continues this one then; return its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()  # else it would be stopped too
        os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 1 << 16 else 1 << 16)
        time.sleep(max(0.0, until_at - time.time()))
        os.kill(parent, signal.SIGCONT)
        os._exit(0)
    return pid


def _ignore(*_: object) -> None:
    """Do nothing with a signal."""
