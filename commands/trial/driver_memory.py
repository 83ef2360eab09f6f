"""The GPU memory of processes as the driver tells it, asked of the child of gpusched that reads NVML."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from gpusched.common import processes

PATIENCE_S = 15.0  # a driver that takes longer is not asked again


class DriverMemory:
    """The memory of processes on some GPUs; unknown where the driver does not tell processes apart (containers)."""

    def __init__(self, uuids: Sequence[str]) -> None:
        """Take the UUIDs of GPUs; those that are simulated have no driver."""
        self._uuids = [uuid for uuid in uuids if uuid.startswith(("GPU-", "MIG-"))]
        self._line, theirs = socket.socketpair()
        self._line.settimeout(PATIENCE_S)
        self._answers = self._line.makefile("rb")
        self._child: subprocess.Popen[bytes] | None = None
        with theirs:
            if self._uuids:
                command = [sys.executable, "-m", "gpusched.host.gpus.nvml"]
                quiet = subprocess.DEVNULL
                self._child = subprocess.Popen(command, cwd="/", stdin=theirs.fileno(), stdout=quiet, stderr=quiet)

    def close(self) -> None:
        """End the child, and wait for that: what a job leaves behind counts as a part of it."""
        if self._child is not None:
            self._child.kill()
            with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: nobody can wait for it
                self._child.wait(PATIENCE_S)

    def of(self, pid: int) -> int:
        """Return what a process and those that it has started hold now, together; 0 if nobody knows."""
        try:
            self._line.sendall(json.dumps(self._uuids).encode() + b"\n")
            samples = json.loads(self._answers.readline())["samples"]
        except (OSError, ValueError, KeyError):
            self._line.close()
            return 0
        family = {pid, *processes.descendants(pid)}
        listed = [each for sample in samples for each in sample["processes"] or () if each["pid"] in family]
        return sum(each["used_bytes"] or 0 for each in listed)
