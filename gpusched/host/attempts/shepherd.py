"""The small process that stays with an attempt to its end: it takes orders, holds locks, and leaves the record.

It decides nothing about jobs and reads no queue. It must work while everything else is down: it imports only
what it needs at its start, and holds the attempt's life lock and claims until no process of the attempt is left.

A shepherd has one attempt at a time and may get another when that has ended; once the dispatcher that started it is
gone it ends with its attempt. A message back only wakes the dispatcher: what counts is the record. But while no record
can be written, the shepherd keeps `life` locked and tells the record to whoever asks.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import time

from gpusched.common import processes
from gpusched.host.attempts import attempt_dir, wire
from gpusched.host.attempts.running_command import RunningCommand, describe

TYPE_CHECKING = False  # what only type checkers need is not imported: many shepherds may live at once
if TYPE_CHECKING:
    from typing import Any

RECORD_AGAIN_S = 2.0
SHUTDOWN_WINDOW_S = 1.0  # a failure that a TERM follows within this time belongs to the box's shutdown

_PR_SET_CHILD_SUBREAPER = 36


def main(channel_fd: int, protocol: int = 1) -> None:
    """Serve the dispatcher at the other end of `channel_fd` until it is gone and the last attempt has ended.

    A dispatcher that speaks protocol 1 gets no greeting, and says nothing of its protocol.
    """
    on, unused = ctypes.c_ulong(1), ctypes.c_ulong(0)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, on, unused, unused, unused)
    os.set_inheritable(channel_fd, False)  # no command gets it
    shepherd = Shepherd(socket.socket(fileno=channel_fd), protocol)
    while (received := shepherd.next_order()) is not None:
        order, fds = received
        if not shepherd.tend(order, fds):
            return


class Shepherd:
    """This process: who speaks to it, its signals, and the attempts that it tends."""

    def __init__(self, launcher: socket.socket, protocol: int) -> None:
        self.launcher: socket.socket | None = launcher  # of the dispatcher that started this process
        self.protocol = protocol
        self.order: tuple[dict[str, Any], list[int]] | None = None  # not begun yet
        self.directory = ""  # of the attempt
        self.claims: list[int] = []
        self.record: dict[str, object] | None = None  # of its end, while it cannot be written
        self.terminated = self.stop_wanted = False
        self.is_booked = False  # the end of the attempt: nothing needs to be written any more
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.wake = wake_read
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.listener, name = wire.listen()
        pid = os.getpid()
        start = processes.process_start(pid)
        self.identity = {"pid": pid, "start_ticks": start, "boot_id": processes.boot_id(), "socket": name}
        self.peers: dict[int, socket.socket] = {}  # by descriptor
        self.residents: dict[int, socket.socket] = {}  # by pid: children that stay, of no attempt
        self.poller = select.poll()
        self.poller.register(self.wake, select.POLLIN)
        self.poller.register(self.listener.fileno(), select.POLLIN)
        self._welcome(launcher)

    def _on_term(self, *_: object) -> None:
        self.terminated = True

    # ---- who speaks to it ----

    def _welcome(self, peer: socket.socket) -> None:
        self.peers[peer.fileno()] = peer
        self.poller.register(peer.fileno(), select.POLLIN)
        self._send_status(peer)

    def _forget(self, peer: socket.socket) -> None:
        if self.peers.pop(peer.fileno(), None):
            self.poller.unregister(peer.fileno())
            peer.close()
            self.launcher = None if peer is self.launcher else self.launcher

    def _send(self, peer: socket.socket, message: Any, fds: list[int] | None = None) -> None:
        try:
            wire.send(peer, message, fds or ())
        except OSError as error:
            if not isinstance(error, ConnectionError):  # the other end is there; the last words that it reads
                print(f"no message can be sent: {describe(error)}", file=sys.stderr)
            self._forget(peer)

    def _send_status(self, peer: socket.socket) -> None:
        if peer is not self.launcher or self.protocol > 1:
            status = {"op": "status", "version": wire.PROTOCOL, "dir": self.directory, "record": self.record}
            self._send(peer, status)

    def _report(self, end: str, *, reusable: bool) -> None:
        """Tell that the attempt has ended."""
        for peer in list(self.peers.values()):
            self._send(peer, (end, reusable))

    def pause(self, timeout_s: float | None) -> None:
        """Sleep until a child changes, a signal or a message comes, or the time is over."""
        timeout_ms = None if timeout_s is None else max(0, int(timeout_s * 1000) + 1)
        for fd, _ in self.poller.poll(timeout_ms):
            if fd == self.wake:
                os.read(self.wake, 512)
            elif fd == self.listener.fileno():
                peer = wire.accept(self.listener)
                if peer is not None:
                    self._welcome(peer)
            elif fd in self.peers:
                self._hear(self.peers[fd])

    def _hear(self, peer: socket.socket) -> None:
        try:
            received = wire.receive(peer)
        except (OSError, ValueError, EOFError, TypeError):  # not ours to understand
            received = None
        if received is None:
            self._forget(peer)
            return
        message, fds = received
        op, about = message["op"], message.get("dir", self.directory)
        if op == "start" and peer is self.launcher:
            self.order, self.directory = received, about
            self.terminated = self.stop_wanted = self.is_booked = False
        elif op == "status":
            self._send_status(peer)
        elif op == "resident":
            self.poller.unregister(peer.fileno())
            self.residents[wire.pid_of(peer)] = self.peers.pop(peer.fileno())  # held: it sees our end by that
        elif about != self.directory:  # it came too late
            _close_all(fds)
        elif op == "stop":
            self.stop_wanted = True
        elif op == "ack":
            self.is_booked = True
        elif op == "claims" and fds:
            self.claims += fds
        elif op == "claims":
            self._send(peer, {"op": "claims", "dir": self.directory}, self.claims)

    def next_order(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return the next order and its descriptors; None if the dispatcher is gone. A TERM while idle ends nothing."""
        while self.launcher is not None:
            self.pause(None)
            if self.order is not None:
                order, self.order = self.order, None
                return order
        return None

    # ---- one attempt ----

    def tend(self, order: dict[str, Any], fds: list[int]) -> bool:
        """Run one attempt to its end and leave its record. Return False if this shepherd must not be used again."""
        life, *self.claims = fds
        mark: dict[str, object] = {
            **self.identity,
            "started_at": f"{time.time():.6f}",
            "queue_id": order.get("queue_id"),
        }
        command = RunningCommand(self, order, life, mark)
        logs: list[int] = []
        try:
            for path in filter(None, (order["log"], order["error_log"])):
                logs.append(_open_log(path))
            attempt_dir.write_mark(life, mark)
            command.start(logs)
        except OSError as error:
            # The box's fault, not the command's: without a mark the dispatcher sees that nothing was started.
            os.ftruncate(life, 0)
            os.close(life)
            self._give_back_claims()
            self._report(f"{self.directory}\0{describe(error)}", reusable=True)
            return True
        finally:
            _close_all(logs)
        record = command.run()
        stuck = record.get("note") == "unkillable"
        if not stuck:
            self._give_back_claims()
        self._leave_record(life, record)
        if not self.peers and command.failed and not command.stopping:
            self._watch_for_shutdown(life, record)
        os.close(life)
        self._report(self.directory, reusable=not stuck)
        self.directory, self.record = "", None
        if stuck:
            _wait_for_all()
        return not stuck

    def _leave_record(self, life: int, record: dict[str, object]) -> None:
        """Write the record, however long that takes; until then tell it, and keep a copy elsewhere."""
        while not (self.is_booked or _is_written(life, record)):
            if self.record is None:
                self.record = record
                attempt_dir.write_copy(self.directory, record)
                for peer in list(self.peers.values()):
                    self._send_status(peer)
            self.pause(RECORD_AGAIN_S)

    def _watch_for_shutdown(self, life: int, record: dict[str, object]) -> None:
        """Without a dispatcher, wait a moment for a TERM after a failure: then the box was going down, not the job."""
        deadline = time.monotonic() + SHUTDOWN_WINDOW_S
        while not self.terminated and (left := deadline - time.monotonic()) > 0:
            self.pause(left)
        if self.terminated:
            _is_written(life, {**record, "stopped": "terminated"})

    def _give_back_claims(self) -> None:
        _close_all(self.claims)
        self.claims = []


def _is_written(life: int, record: dict[str, object]) -> bool:
    """Write the record; return True if that is done, or nobody could find it."""
    try:
        attempt_dir.write_record(life, record)
        return True
    except OSError:  # no room on a copy-on-write disk, a broken or a read-only one
        return os.fstat(life).st_nlink == 0


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _open_log(path: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.mkdir(os.path.dirname(path), 0o700)  # somebody has cleared the logs away
        return os.open(path, flags, 0o600)


def _wait_for_all() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]))
