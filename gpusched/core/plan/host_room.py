"""Count the cores and the memory of the host that are left while one plan is made, for the jobs that state them.

They get them strictly in order: behind one that has to wait no other such job starts, so that none waits for ever.
"""

from __future__ import annotations

from gpusched.common.quantities import format_size
from gpusched.common.text import count
from gpusched.core.model import JobRow
from gpusched.core.plan.snapshot import ENDED_FACTS, Limits, Reason, Snapshot


def beyond_limits(cpus: int, ram_bytes: int, limits: Limits) -> str:
    """Return why a job that needs so much of the host can never start under these limits; empty if it can."""
    if limits.cpus and cpus > limits.cpus:
        return f"needs {count(cpus, 'core')}, and {limits.cpus} are allowed here (--cpus)"
    if limits.ram_bytes and ram_bytes > limits.ram_bytes:
        return f"needs {format_size(ram_bytes)} of memory, and {_mib(limits.ram_bytes)} are allowed here (--ram)"
    return ""


def _mib(size: int) -> str:
    return format_size(max(0, size) >> 20 << 20) if size >> 20 > 0 else "0M"


class HostRoom:
    """`take` counts a job that starts, `reason` says why one cannot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._limits = snapshot.limits
        running = [attempt.job for attempt in snapshot.attempts if attempt.fact not in ENDED_FACTS]
        self._cpus_left = snapshot.limits.cpus - sum(job.cpus for job in running)
        self._ram_left = snapshot.limits.ram_bytes - sum(job.ram_bytes for job in running)
        self._first_waiting: int | None = None

    def reason(self, job: JobRow) -> Reason | None:
        """Return why a job cannot have the cores and the memory that it states; None if it can, or states none."""
        if not job.cpus and not job.ram_bytes:
            return None
        if never := beyond_limits(job.cpus, job.ram_bytes, self._limits):
            return Reason("never", f"waits in vain: {never}")
        if self._first_waiting is not None:
            return Reason("host", f"behind job {self._first_waiting}, which waits for cores or memory of the host")
        text = self._shortage(job)
        if text:
            self._first_waiting = job.id
        return Reason("host", text) if text else None

    def _shortage(self, job: JobRow) -> str:
        limits = self._limits
        if limits.cpus and job.cpus > self._cpus_left:
            return f"needs {count(job.cpus, 'core')}, {max(0, self._cpus_left)} of {limits.cpus} are left (--cpus)"
        if limits.ram_bytes and job.ram_bytes > self._ram_left:
            left = f"{_mib(self._ram_left)} of {_mib(limits.ram_bytes)} are left (--ram)"
            return f"needs {format_size(job.ram_bytes)} of memory, {left}"
        return ""

    def take(self, job: JobRow) -> None:
        """Count a job that gets its place in this plan."""
        self._cpus_left -= job.cpus
        self._ram_left -= job.ram_bytes
