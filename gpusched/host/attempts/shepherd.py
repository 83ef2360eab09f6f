"""The small process that stays with an attempt to its end: exec, signals, time limit, exit record.

It decides nothing about jobs and reads no queue. It must work while everything else is down: it imports only
what it needs at its start, and holds the attempt's life lock and claims until no process of the attempt is left.

The dispatcher sends orders over a SOCK_SEQPACKET pair: a marshalled dict, with the descriptors of the life lock and of
the claims beside it. A shepherd has one attempt at a time and may get another when that has ended; once the dispatcher
is gone it ends with its attempt. A message back only wakes the dispatcher: what counts is the record.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import math
import os
import select
import signal
import socket
import sys
import time

from gpusched.common import processes
from gpusched.host.attempts import attempt_dir

TYPE_CHECKING = False  # what only type checkers need is not imported: many shepherds may live at once
if TYPE_CHECKING:
    from typing import Any

PROTOCOL = 2  # of the messages between dispatcher and shepherd
MESSAGE_LIMIT = 1 << 18
FDS_LIMIT = 250
FD_BYTES = 4
SHUTDOWN_WINDOW_S = 1.0  # a failure that a TERM follows within this time belongs to the box's shutdown
UNKILLABLE_AFTER_S = 30.0
LEFTOVER_GRACE_S = 0.2  # processes that outlive the command by less are not worth a word
KILL_AGAIN_S = 0.2
STRING_LIMIT_KIB = 128  # MAX_ARG_STRLEN of the kernel
_NO_PROCESS = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

_PR_SET_CHILD_SUBREAPER = 36
# glibc keeps 32 and 33 for itself; KILL and STOP cannot be reset
_RESET_SIGNALS = [n for n in range(1, 65) if n not in (signal.SIGKILL, signal.SIGSTOP, 32, 33)]


def main(channel_fd: int, protocol: int = 1) -> None:
    """Serve the dispatcher at the other end of `channel_fd` until it is gone and the last attempt has ended.

    A dispatcher that speaks protocol 1 expects no greeting, and says nothing of its protocol.
    """
    on, unused = ctypes.c_ulong(1), ctypes.c_ulong(0)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, on, unused, unused, unused)
    os.set_inheritable(channel_fd, False)  # no command gets it
    shepherd = Shepherd(socket.socket(fileno=channel_fd))
    if protocol > 1:
        shepherd.send({"op": "ready", "version": PROTOCOL})
    while (received := shepherd.next_order()) is not None:
        order, fds = received
        if not shepherd.tend(order, fds):
            return


class Shepherd:
    """This process: its channel to the dispatcher, its signals, and the attempts that it tends."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel: socket.socket | None = channel
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.boot = processes.boot_id()
        self.start_ticks = processes.process_start(os.getpid())
        self.environment = dict(os.environb)
        self.terminated = False
        self.stop_wanted = ""  # directory of the attempt that the dispatcher wants ended
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.wake = wake_read
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.poller = select.poll()
        self.poller.register(self.wake, select.POLLIN)
        self.poller.register(channel.fileno(), select.POLLIN)

    def _on_term(self, *_: object) -> None:
        self.terminated = True

    # ---- the dispatcher's end ----

    def next_order(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return the next order and its descriptors; None if the dispatcher is gone. A TERM while idle ends nothing."""
        while True:
            received = self._receive()
            if received is None:
                return None
            order, fds = received
            if order["op"] == "start from file":
                with open(fds.pop(0), "rb") as file:
                    file.seek(0)
                    order = marshal.load(file)
            if order["op"] == "start":
                self.terminated = False
                return order, fds

    def _receive(self) -> tuple[dict[str, Any], list[int]] | None:
        if self.channel is None:
            return None
        room = socket.CMSG_SPACE(FDS_LIMIT * FD_BYTES)
        try:
            data, ancillary, _, _ = self.channel.recvmsg(MESSAGE_LIMIT, room, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            data, ancillary = b"", []
        if not data:
            self._forget_dispatcher()
            return None
        fds: list[int] = []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += memoryview(content[: len(content) // FD_BYTES * FD_BYTES]).cast("i")
        return marshal.loads(data), fds

    def _forget_dispatcher(self) -> None:
        if self.channel is not None:
            self.poller.unregister(self.channel.fileno())
            self.channel.close()
            self.channel = None

    def send(self, message: dict[str, Any] | tuple[str, bool]) -> None:
        """Tell the dispatcher, if there is one."""
        if self.channel is not None:
            try:
                self.channel.send(marshal.dumps(message))
            except OSError:
                self._forget_dispatcher()

    def pause(self, timeout_s: float | None) -> None:
        """Sleep until a child changes, a signal or an order comes, or the time is over."""
        timeout_ms = None if timeout_s is None else max(0, int(timeout_s * 1000) + 1)
        for fd, _ in self.poller.poll(timeout_ms):
            if fd == self.wake:
                os.read(self.wake, 512)
            else:
                received = self._receive()
                if received is not None and received[0]["op"] == "stop":
                    self.stop_wanted = received[0]["dir"]

    # ---- one attempt ----

    def tend(self, order: dict[str, Any], fds: list[int]) -> bool:
        """Run one attempt to its end and leave its record. Return False if this shepherd must not be used again."""
        life, claims = fds[0], fds[1:]
        directory: str = order["dir"]
        mark: dict[str, object] = {
            "pid": os.getpid(),
            "start_ticks": self.start_ticks,
            "boot_id": self.boot,
            "started_at": f"{time.time():.6f}",
        }
        attempt = _RunningCommand(self, order, life, mark)
        logs: list[int] = []
        try:
            for path in filter(None, (order["log"], order["error_log"])):
                logs.append(_open_log(path))
            attempt_dir.write_mark(life, mark)
            attempt.start(logs)
        except OSError as error:
            # The box's fault, not the command's: without a mark the dispatcher sees that nothing was started.
            os.ftruncate(life, 0)
            self._let_go(life, claims)
            self.send((f"{directory}\0{_describe(error)}", True))
            return True
        finally:
            for fd in logs:
                os.close(fd)
        record = attempt.run()
        stuck = record.get("note") == "unkillable"
        attempt_dir.write_record(life, record)
        if self.channel is None and attempt.failed and not attempt.stopping:
            self._watch_for_shutdown(life, record)
        self._let_go(life, [] if stuck else claims)
        self.send((directory, not stuck))
        if stuck:
            _wait_for_all()
        return not stuck

    def _watch_for_shutdown(self, life: int, record: dict[str, object]) -> None:
        """Without a dispatcher, wait a moment for a TERM after a failure: then the box was going down, not the job."""
        deadline = time.monotonic() + SHUTDOWN_WINDOW_S
        while not self.terminated and (left := deadline - time.monotonic()) > 0:
            self.pause(left)
        if self.terminated:
            attempt_dir.write_record(life, {**record, "stopped": "terminated"})

    def _let_go(self, life: int, claims: list[int]) -> None:
        os.close(life)
        for fd in claims:
            os.close(fd)


class _RunningCommand:
    """One command from exec to the end of its last process."""

    def __init__(self, shepherd: Shepherd, order: dict[str, Any], life: int, mark: dict[str, object]) -> None:
        self.shepherd = shepherd
        self.order = order
        self.life = life
        self.mark = mark
        self.pid = 0
        self.error = ""  # why the command could not be started
        self.began = 0.0
        self.status: int | None = None
        self.background = 0  # status of the last leftover that failed
        self.stopping = ""
        self.max_rss_kib = 0
        self.cpu_s = 0.0

    @property
    def failed(self) -> bool:
        return bool(self.status) or bool(self.background)

    def start(self, logs: list[int]) -> None:
        """Start the command, or note why it cannot be. Raises OSError when the box has no process to spare."""
        self.began = time.monotonic()
        try:
            self.pid = self._spawn(logs)
        except OSError as error:
            if error.errno in _NO_PROCESS:
                raise
            self.error = _describe(error)
            if error.errno == errno.E2BIG:
                together_kib = os.sysconf("SC_ARG_MAX") // 1024
                limits = f"a word or variable may have {STRING_LIMIT_KIB} KiB, all together {together_kib} KiB"
                self.error = f"{error.strerror}: {limits}"
        except ValueError as error:
            self.error = str(error)

    def run(self) -> dict[str, object]:
        """Stay until the attempt has ended; return the exit record."""
        if self.error:
            return self._record(error=self.error)
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
                kill_at = now + self.order["grace"]
                self._signal_all(signal.SIGTERM)
            if now >= kill_at:
                if now >= kill_at + UNKILLABLE_AFTER_S:
                    return self._record(note="unkillable")
                self._signal_all(signal.SIGKILL)
            until = min(limit_at, leftovers_at)
            if self.stopping:
                until = min(now + KILL_AGAIN_S, kill_at if now < kill_at else math.inf)
            self.shepherd.pause(None if until == math.inf else until - now)

    def _stop_reason(self, over_time: bool) -> str:
        if over_time:
            return "timed_out"
        if self.shepherd.terminated:
            return "terminated"
        return "requested" if self.shepherd.stop_wanted == self.order["dir"] else ""

    def _spawn(self, logs: list[int]) -> int:
        order, null = self.order, self.shepherd.null
        try:
            os.chdir(order["cwd"])
            environment = {**self.shepherd.environment, **order["environment"]}
            environment.pop(b"OLDPWD", None)
            environment[b"PWD"] = order["cwd"]
            return os.posix_spawnp(
                order["argv"][0],
                order["argv"],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, logs[0], 1),
                    (os.POSIX_SPAWN_DUP2, logs[-1], 2),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=_RESET_SIGNALS,
            )
        finally:
            os.chdir("/")

    def _reap(self) -> bool:
        """Collect every child that has ended; return False when no child is left, living or dead."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.max_rss_kib = max(self.max_rss_kib, usage.ru_maxrss)
            self.cpu_s += usage.ru_utime + usage.ru_stime
            if pid == self.pid:
                self.status = status
            elif self.status is not None and status and not self.stopping:
                self.background = status

    def _mark_leftovers(self) -> None:
        names = []
        for pid in processes.descendants(os.getpid()):
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    names.append(f"{pid} {file.read().strip()}")
            except OSError:
                continue
        if names:
            attempt_dir.write_mark(self.life, {**self.mark, "leftovers": ", ".join(names[:8])})

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
            "note": note or ("leftovers stopped" if self.stopping == "leftovers" else None),
            "max_rss_kib": self.max_rss_kib,
            "cpu_s": f"{self.cpu_s:.3f}",
        }


def _open_log(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.mkdir(os.path.dirname(path), 0o700)  # somebody has cleared the logs away
        return os.open(path, flags, 0o600)


def _describe(error: OSError) -> str:
    """Return the error in words, with the file that it is about."""
    name = error.filename
    where = f": {os.fsdecode(name)}" if isinstance(name, (str, bytes)) else ""
    return f"{error.strerror}{where}"


def _wait_for_all() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def _strays(marker: tuple[bytes, ...]) -> list[int]:
    """Return the processes that have the attempt's marker in their environment, whatever their parents are now."""
    return [pid for pid in processes.marked_processes(marker) if pid != os.getpid()]


if __name__ == "__main__":
    main(int(sys.argv[1]))
