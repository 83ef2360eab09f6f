"""NVML as a source of readings, read through a child process. Never loads NVML, never waits for it.

NVML can hang in a way that no process survives, and a driver can be replaced under it. So a child
(gpusched.host.gpus.nvml) reads it, one question at a time; a child that does not answer is abandoned and, after
longer and longer pauses, replaced.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.core.model import Device, Reading, Sample, nameless_uuid

RETRY_S = (15.0, 30.0, 60.0)  # pauses before fresh starts of an NVML that does not work; the last one repeats
ANSWER_LIMIT_BYTES = 16 << 20
STUCK_LIMIT = 3  # of children that KILL has not ended yet: a driver that hangs them would hang more
FIRST_ANSWER_FACTOR = 3  # a first answer may have to wake each board, where persistence mode is off

_VERSIONS = "the driver was upgraded under the running one: reboot, or reload the nvidia kernel modules"
TROUBLES = {  # exception of the child: its meaning, and the remedy
    "NVMLError_LibraryNotFound": (
        "there is no NVIDIA driver library (libnvidia-ml.so.1) here",
        "gpusched needs NVIDIA's driver; without a GPU, try --simulate 4",
    ),
    "NVMLError_DriverNotLoaded": (
        "the NVIDIA driver is not loaded",
        "load it, or give the container its GPUs; `nvidia-smi` must work first",
    ),
    "NVMLError_LibRmVersionMismatch": ("the NVIDIA driver and its library differ in version", _VERSIONS),
    "NVMLLibraryMismatchError": ("the NVIDIA library does not have what it should", _VERSIONS),
    "NVMLError_NoPermission": (
        "no permission to use the NVIDIA driver",
        "this user may not open /dev/nvidia*: ask for the group that may, often `video`",
    ),
}


def _trouble(text: str, hint: str = "") -> GpuschedError:
    return GpuschedError(text, hint=hint, exit_code=EXIT_CANNOT_WORK)


@dataclass(frozen=True, slots=True)
class _Question:
    """One question to NVML. With `everything` it covers `uuids` too, and the answer must contain each of them."""

    asked_at: float
    everything: bool
    uuids: frozenset[str]

    def merged(self, other: _Question | None) -> _Question:
        if other is None:
            return self
        return _Question(
            max(self.asked_at, other.asked_at),
            self.everything or other.everything,
            self.uuids | other.uuids,
        )


class _Child:
    """One run of gpusched.host.gpus.nvml and the socket to it."""

    def __init__(self, environment: Mapping[str, str], now: float) -> None:
        self.born = now
        self.answered = False
        self.buffer = b""
        self.line, theirs = socket.socketpair()
        self.line.setblocking(False)
        path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpusched.host.gpus.nvml"],
                cwd="/",  # -m would import from the working directory
                env={**environment, "PYTHONPATH": path},
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def ask(self, uuids: list[str] | None) -> None:
        """Send a question. The end of a child shows when its answer is read."""
        try:
            self.line.sendall(json.dumps(uuids).encode() + b"\n")
        except OSError:
            with suppress(OSError):
                self.line.shutdown(socket.SHUT_RD)

    def answer(self) -> dict[str, Any] | None:
        """Return the answer once it has come whole, else None. Raises OSError or ValueError if the child is gone."""
        while b"\n" not in self.buffer:
            if len(self.buffer) > ANSWER_LIMIT_BYTES:
                raise ValueError("an endless answer")
            try:
                self.buffer += self.line.recv(1 << 18) or b"\n"  # an empty answer: the end
            except BlockingIOError:
                return None
        text, _, self.buffer = self.buffer.partition(b"\n")
        try:
            answer = dict(json.loads(text))
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from None
        self.answered = True
        return answer


class NvmlSource:
    """NVML, read through a child process; a child that hangs is abandoned and replaced."""

    def __init__(self, timeout_s: float, environment: Mapping[str, str]) -> None:
        self._timeout_s = timeout_s
        self._environment = environment
        self._epoll = select.epoll()  # a descriptor that stays the same while children come and go
        self._child: _Child | None = None
        self._dying: list[subprocess.Popen[bytes]] = []
        self._next: _Question | None = None  # to be put as soon as no question is in flight
        self._asked: _Question | None = None  # in flight
        self._asked_since = 0.0
        self._retry_at = 0.0
        self._failures = 0
        self._trouble: GpuschedError | None = None
        self._ready: list[Reading] = []
        self._known: dict[int, Device] = {}  # by index, of the newest complete reading
        self._versions = "NVML, not asked yet"

    def request(self, uuids: frozenset[str] | None, now: float) -> None:
        self._next = _Question(now, uuids is None, uuids or frozenset()).merged(self._next)
        self._ask(now)

    def poll(self, now: float) -> list[Reading]:
        self._dying = [process for process in self._dying if process.poll() is None]
        self._hear(now)
        self._ask(now)
        ready, self._ready = self._ready, []
        return ready

    def deadline(self) -> float | None:
        if self._ready:
            return 0.0
        if self._asked is not None:
            return self._asked_since + self._patience_s()
        return self._retry_at if self._next is not None else None

    def fileno(self) -> int:
        return self._epoll.fileno()

    def trouble(self) -> GpuschedError | None:
        return self._trouble

    def job_environment(self) -> dict[str, str]:
        return {}

    def describe(self) -> str:
        return self._versions

    def close(self) -> None:
        self._abandon()
        self._epoll.close()
        for process in self._dying:
            with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: nobody can wait for it
                process.wait(timeout=1.0)

    def _ask(self, now: float) -> None:
        """Send the next question, unless one is in flight or a pause after a failure lasts."""
        if self._asked is not None or self._next is None:
            return
        if self._child is None:
            if len(self._dying) >= STUCK_LIMIT and now >= self._retry_at:
                self._retry_at = now + RETRY_S[-1]
            if now < self._retry_at:
                return
            try:
                self._child = _Child(self._environment, now)
            except OSError as error:
                return self._fail(_trouble(f"the NVML helper cannot be started: {error.strerror}"), now)
            self._epoll.register(self._child.line.fileno(), select.EPOLLIN)
        self._asked, self._next, self._asked_since = self._next, None, now
        self._child.ask(None if self._asked.everything else sorted(self._asked.uuids))

    def _hear(self, now: float) -> None:
        """Take the answer of the child; notice its end, and its silence."""
        if self._child is None:
            return
        try:
            answer = self._child.answer()
        except (OSError, ValueError):
            if self._child.answered and now - self._child.born >= RETRY_S[0]:
                self._abandon()  # it worked until somebody ended it: go on at once
                return self._ask(now)
            return self._fail(_trouble("the NVML helper process ended unexpectedly"), now)
        if answer is None:
            if self._asked is not None and now - self._asked_since >= self._patience_s():
                silent = f"NVML has not answered for {self._patience_s():g} s"
                self._fail(_trouble(silent, "the driver hangs; `dmesg | grep -e NVRM -e Xid` may say why"), now)
        elif "trouble" in answer:
            name, text = answer["trouble"]
            self._fail(_trouble(*TROUBLES.get(name, (f"NVML does not work: {text or name}",))), now)
        elif self._asked is not None:
            question = self._asked
            try:
                reading = self._reading(question, answer, now)
                self._versions = answer["versions"]
            except Exception as error:  # names of others are in it: nothing of them may end this process
                return self._fail(_trouble(f"an answer of NVML cannot be read: {error!r}"[:500]), now)
            self._asked, self._trouble, self._failures = None, None, 0
            self._ready.append(reading)
            hopeless = question.everything and all(sample.error for sample in reading.samples)
            if hopeless and now - self._child.born >= RETRY_S[0]:
                self._abandon()  # perhaps the driver was reloaded: the next question gets a fresh start

    def _patience_s(self) -> float:
        fresh = self._child is not None and not self._child.answered
        return self._timeout_s * (FIRST_ANSWER_FACTOR if fresh else 1)

    def _fail(self, trouble: GpuschedError, now: float) -> None:
        """Note that an outage begins or goes on; try again after a pause that grows."""
        self._trouble = trouble
        self._retry_at = now + RETRY_S[min(self._failures, len(RETRY_S) - 1)]
        self._failures += 1
        self._abandon()

    def _abandon(self) -> None:
        """Kill the child without waiting for its end; its question, if any, waits for the next child."""
        if self._asked is not None:
            self._next, self._asked = self._asked.merged(self._next), None
        if self._child is not None:
            self._epoll.unregister(self._child.line.fileno())
            self._child.line.close()
            self._child.process.kill()
            self._dying.append(self._child.process)
            self._child = None

    def _reading(self, question: _Question, answer: dict[str, Any], now: float) -> Reading:
        import msgspec  # not at the start of every command

        devices = msgspec.convert(answer["devices"], list[Device])
        samples = msgspec.convert(answer["samples"], list[Sample])
        for index, error in answer["nameless"]:  # a GPU whose UUID cannot be read
            device = self._known.get(index)
            if device is None or any(other.uuid == device.uuid for other in devices):
                device = Device(uuid=nameless_uuid(index), index=index, name="GPU that does not answer")
            devices.append(device)
            samples.append(Sample(device.uuid, answer["at"], processes=None, error=error))
        if question.everything:
            devices.sort(key=lambda device: device.index)
            order = {device.uuid: number for number, device in enumerate(devices)}
            samples.sort(key=lambda sample: order[sample.uuid])
            self._known = {device.index: device for device in devices if not device.is_mig}
        missing = sorted(question.uuids - {sample.uuid for sample in samples})
        samples += [Sample(uuid, answer["at"], processes=None, error="lost") for uuid in missing]
        return Reading(question.asked_at, now, tuple(devices), tuple(samples), question.everything)
