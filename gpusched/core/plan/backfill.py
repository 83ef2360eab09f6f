"""Keep devices for a job that others have passed for too long. Chooses for no job."""

from __future__ import annotations

from collections.abc import Sequence, Set

from gpusched.core.model import JobRow
from gpusched.core.plan.snapshot import DeviceView, Snapshot
from gpusched.core.plan.wait_reason import minutes, want


class Backfill:
    """The jobs that wait for devices in one plan, in their order, and the devices kept for them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._at = snapshot
        self._is_first_served = False  # all devices kept for some job are free, or run jobs of this queue
        self._passable: list[int] = []  # waiting jobs that no other has passed in this plan
        self.passed: list[int] = []  # waiting jobs that others have passed
        self.reserved: dict[str, str] = {}  # UUID of a kept device -> reason for jobs behind
        self.gpus_reserved = 0  # of max_gpus, beside the devices that the queue has

    def note_placed(self) -> None:
        """Note that a job gets its devices, and so passes all jobs that wait before it."""
        self.passed += self._passable
        self._passable = []

    def reserve(self, job: JobRow, candidates: Sequence[DeviceView], free: Set[str], ours: Set[str]) -> str:
        """Note that the job waits, and keep devices for it if it was passed for too long.

        `candidates` could serve the job, the best to keep first; `free` ones can start at once, `ours` run jobs of
        this queue. Return the labels of the devices that are kept, or "".
        """
        if job.gpus > min(self._at.limits.max_gpus, len(candidates)):
            return ""  # no number of kept devices would help it now
        self._passable.append(job.id)
        waited_s = self._at.now - self._at.waited_since.get(job.id, self._at.now)
        devices = [d for d in candidates if d.uuid not in self.reserved][: job.gpus]
        if self._is_first_served or waited_s < self._at.limits.max_bypass_s or len(devices) < job.gpus:
            return ""
        for device in devices:
            text = f"kept for job {job.id}, which has waited {minutes(waited_s)} for {want(job)}"
            self.reserved[device.uuid] = f"{device.label} is {text}"
            self.gpus_reserved += device.uuid in free  # ours count already; others' devices may take long
        # a job that also waits for others' devices does not keep the next waiting job from its own
        self._is_first_served = all(d.uuid in free or d.uuid in ours for d in devices)
        return ", ".join(d.label for d in devices)
