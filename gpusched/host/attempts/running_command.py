"""One command of an attempt, from exec to the end of its last process: signals, time limit, what it leaves."""

from __future__ import annotations

import errno
import math
import os
import signal
import time

from gpusched.common import processes
from gpusched.host.attempts import attempt_dir
from gpusched.host.attempts.fence import LOOK_S, Fence

TYPE_CHECKING = False  # a shepherd imports this
if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from typing import Any, Protocol

    class Tender(Protocol):
        """The shepherd, as its command needs it."""

        claims: list[int]
        terminated: bool
        stop_wanted: bool
        identity: dict[str, Any]
        residents: dict[int, socket.socket]

        def pause(self, timeout_s: float | None) -> None: ...


UNKILLABLE_AFTER_S = 30.0
LEFTOVER_GRACE_S = 0.2  # processes that outlive the command by less are not worth a word
KILL_AGAIN_S = 0.2
STRING_LIMIT_KIB = 128  # MAX_ARG_STRLEN of the kernel
FIRST_CLAIM_FD = 230  # of the claims in the command; scripts use lower numbers
_NO_PROCESS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

# glibc keeps 32 and 33 for itself; KILL and STOP cannot be reset
_RESET_SIGNALS = [n for n in range(1, 65) if n not in (signal.SIGKILL, signal.SIGSTOP, 32, 33)]


class RunningCommand:
    """One command from exec to the end of its last process."""

    def __init__(self, shepherd: Tender, order: dict[str, Any], life: int, mark: dict[str, object]) -> None:
        self.shepherd = shepherd
        self.order = order
        self.life = life
        self.mark = mark
        self.fence = Fence(order.get("fence", ""))
        self.pid = 0
        self.error = ""  # why the command could not be started
        self.began = 0.0
        self.status: int | None = None
        self.background = 0  # status of the last leftover that failed
        self.stopping = ""
        self.note = ""
        self.max_rss_kib = 0
        self.cpu_s = 0.0

    @property
    def failed(self) -> bool:
        return bool(self.status) or bool(self.background)

    def start(self, logs: list[int]) -> None:
        """Start the command, or note why it cannot be. Raises OSError when the box has no process to spare."""
        self.began = time.monotonic()
        if self._is_fenced():
            self.stopping = "fenced"
            return
        try:
            self.pid = self._spawn(logs)
        except OSError as error:
            if error.errno in _NO_PROCESS:
                raise
            self.error = describe(error)
            if error.errno == errno.E2BIG:
                together_kib = os.sysconf("SC_ARG_MAX") // 1024
                limits = f"a word or variable may have {STRING_LIMIT_KIB} KiB, all together {together_kib} KiB"
                self.error = f"{error.strerror}: {limits}"
        except ValueError as error:
            self.error = str(error)

    def run(self) -> dict[str, object]:
        """Stay until the attempt has ended; return the exit record."""
        if not self.pid:
            return self._record(error=self.error)
        self._mark_session()
        limit_at = self.began + self.order["time_limit"] if self.order["time_limit"] else math.inf
        leftovers_at = kill_at = math.inf
        has_ended = False
        while True:
            alive = self._reap()
            now = time.monotonic()
            if not alive and not (self.stopping and _strays(self.order["marker"])):
                return self._record()
            if self.status is not None and not has_ended:
                has_ended = True
                leftovers_at = now + LEFTOVER_GRACE_S
            if now >= leftovers_at:
                leftovers_at = math.inf
                self._mark_leftovers()
                if self.order["leftovers"] == "stop":
                    self.stopping = self.stopping or "leftovers"
            self.stopping = self.stopping or self._stop_reason(now >= limit_at)
            if self.stopping and kill_at == math.inf:
                if self.stopping == "timed_out" and self.status is not None:
                    code = os.waitstatus_to_exitcode(self.status)
                    ending = f"exit {code}" if code >= 0 else f"signal {-code}"
                    self.note = f"the command had ended ({ending}), but left: {', '.join(self._leftovers())}"
                kill_at = now + self.order["grace"]
                self._signal_all(signal.SIGTERM)
            if now >= kill_at:
                if now >= kill_at + UNKILLABLE_AFTER_S:
                    return self._record(note="unkillable")
                self._signal_all(signal.SIGKILL)
            until = min(limit_at, leftovers_at, self._next_look(now))
            if self.stopping:
                until = min(now + KILL_AGAIN_S, kill_at if now < kill_at else math.inf)
            self.shepherd.pause(None if until == math.inf else until - now)

    def _stop_reason(self, over_time: bool) -> str:
        if over_time:
            return "timed_out"
        if self.shepherd.terminated:
            return "terminated"
        if self._is_fenced():
            return "fenced"
        return "requested" if self.shepherd.stop_wanted else ""

    def _is_fenced(self) -> bool:
        """Return True if the attempt runs under a lease, and that has run out without news."""
        left_s = self.fence.left_s()
        return left_s is not None and left_s <= 0

    def _next_look(self, now: float) -> float:
        """Return when the lease has to be looked at again, in monotonic seconds."""
        left_s = self.fence.left_s()
        return math.inf if left_s is None else now + min(LOOK_S, max(0.0, left_s))

    def _spawn(self, logs: list[int]) -> int:
        order = self.order
        try:
            os.chdir(order["cwd"])
            inherited = order.get("inherited")
            environment = {**(os.environb if inherited is None else inherited), **order["environment"]}
            environment.pop(b"OLDPWD", None)
            environment[b"PWD"] = order["cwd"]
            environment[b"GPUSCHED_SHEPHERD"] = self.shepherd.identity["socket"].encode()
            return os.posix_spawnp(
                order["argv"][0],
                order["argv"],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                    (os.POSIX_SPAWN_DUP2, logs[0], 1),
                    (os.POSIX_SPAWN_DUP2, logs[-1], 2),
                    # the processes of the job hold its devices, whatever becomes of this one
                    *pass_on(self.shepherd.claims),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=_RESET_SIGNALS,
            )
        finally:
            os.chdir("/")

    def _reap(self) -> bool:
        """Collect every child that has ended; return False when none of the attempt is left, living or dead."""
        is_alone = False  # with residents; those that have ended meanwhile are still to be collected
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                if is_alone or self.status is None or not self.shepherd.residents or self._descendants():
                    return not is_alone
                is_alone = True
                continue
            if pid in self.shepherd.residents:
                self.shepherd.residents.pop(pid).close()
                continue
            self.max_rss_kib = max(self.max_rss_kib, usage.ru_maxrss)
            self.cpu_s += usage.ru_utime + usage.ru_stime
            if pid == self.pid:
                self.status = status
            elif self.status is not None and status and not self.stopping:
                self.background = status

    def _mark_session(self) -> None:
        """Note the session of the command, by which its processes are found if the shepherd is killed."""
        fields = processes.process_stat(self.pid)
        if fields is not None:
            self.mark["session"] = f"{self.pid} {fields[19]}"
            try:
                attempt_dir.write_mark(self.life, self.mark, sync=False)  # no use after a power cut
            except OSError:
                return  # the other signs are left

    def _mark_leftovers(self) -> None:
        names = self._leftovers()
        if names:
            try:
                attempt_dir.write_mark(self.life, {**self.mark, "leftovers": ", ".join(names)})
            except OSError:
                return  # it is for people: the job goes on without it

    def _descendants(self) -> list[int]:
        """Return the processes of the attempt, each after its parent; those that stay for others are none of it."""
        return [pid for pid in processes.descendants(os.getpid()) if pid not in self.shepherd.residents]

    def _leftovers(self) -> list[str]:
        """Return pid and name of the first processes that the command has left."""
        pids = self._descendants()[:8]
        return [f"{pid} {name}" for pid in pids if (name := processes.name_of(pid))]

    def _signal_all(self, number: int) -> None:
        # parents first: a shell whose child has just been ended would go on with its next command
        for pid in dict.fromkeys([*processes.descendants(os.getpid()), *_strays(self.order["marker"])]):
            if processes.send_signal(pid, number):
                processes.send_signal(pid, signal.SIGCONT)  # a stopped one has to wake to end

    def _record(self, error: str = "", note: str = "") -> dict[str, object]:
        status = self.status
        if status == 0 and self.background:
            status, note = self.background, note or "background"
        return {
            **self.mark,
            "ended_at": f"{time.time():.6f}",
            "exit_code": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            "stopped": self.stopping if self.stopping != "leftovers" else None,
            "error": error or None,
            "note": note or self.note or ("leftovers stopped" if self.stopping == "leftovers" else None),
            "max_rss_kib": self.max_rss_kib,
            "cpu_s": f"{self.cpu_s:.3f}",
        }


def pass_on(fds: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the file actions by which a command gets these descriptors, at high numbers."""
    first = min(FIRST_CLAIM_FD, os.sysconf("SC_OPEN_MAX") - len(fds))
    return [(os.POSIX_SPAWN_DUP2, fd, first + n) for n, fd in enumerate(fds)]


def describe(error: OSError) -> str:
    """Return the error in words that can be stored, with the file that it is about."""
    name = error.filename
    where = f": {os.fsencode(name).decode('utf-8', 'replace')}" if isinstance(name, (str, bytes)) else ""
    return f"{error.strerror}{where}"


def _strays(marker: tuple[bytes, ...]) -> list[int]:
    """Return the processes that have the attempt's marker in their environment, whatever their parents are now."""
    return [pid for pid in processes.marked_processes(marker) if pid != os.getpid()]
