"""How long jobs may pass one that waits for devices, and what is kept for it after that. Chooses for no job."""

from __future__ import annotations

from collections.abc import Sequence, Set

from gpusched.core.model import Job
from gpusched.core.plan.snapshot import DeviceView, Snapshot
from gpusched.core.plan.wait_reason import minutes, want


class Backfill:
    """The jobs that wait for devices in one plan, in their order, and what is kept for them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._at = snapshot
        self._next_served = False  # whether all that is kept for a job is for this queue to give
        self._passable: list[int] = []  # jobs that wait, and that nobody has passed in this plan
        self.passed: list[int] = []  # jobs that wait while one behind them gets devices
        self.kept: dict[str, str] = {}  # device -> why it is kept from the jobs behind
        self.gpus_kept = 0  # of max_gpus, beside the devices that the queue has

    def note_placed(self) -> None:
        """A job gets its devices: it passes those that wait before it."""
        self.passed += self._passable
        self._passable = []

    def keep(self, job: Job, candidates: Sequence[DeviceView], free: Set[str], ours: Set[str]) -> str:
        """Note that the job waits, and keep devices for it if it has been passed for long: these, or "" for none.

        `candidates` could serve it, the best to keep first; `free` ones are to be had, `ours` run jobs of this queue.
        """
        if job.gpus > min(self._at.limits.max_gpus, len(candidates)):
            return ""  # as things stand, keeping any would not help it
        self._passable.append(job.id)
        waited_s = self._at.now - self._at.waited_since.get(job.id, self._at.now)
        chosen = [d for d in candidates if d.uuid not in self.kept][: job.gpus]
        if self._next_served or waited_s < self._at.limits.max_bypass_s or len(chosen) < job.gpus:
            return ""
        for device in chosen:
            text = f"kept for job {job.id}, which has waited {minutes(waited_s)} for {want(job)}"
            self.kept[device.uuid] = f"{device.label} is {text}"
            self.gpus_kept += device.uuid in free  # ours count already; those of others may be long in coming
        # while it waits for others' devices too, the next job gets its turn; else one after the other
        self._next_served = all(d.uuid in free or d.uuid in ours for d in chosen)
        return ", ".join(d.label for d in chosen)
