"""What the open attempts use of their devices, by process: folded over polls. Ends and starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpusched.core.jobs import usage
from gpusched.core.model import Sample
from gpusched.core.plan.snapshot import Resident
from gpusched.dispatcher.attempt_book import AttemptBook
from gpusched.dispatcher.open_attempt import OpenAttempt
from gpusched.host.attempts import reaper


class UsageMeter:
    def __init__(self, attempts: AttemptBook) -> None:
        self._attempts = attempts
        self._energy: dict[str, float] = {}  # the boards' running totals at the last reading

    def owners(self, samples: Iterable[Sample]) -> dict[int, OpenAttempt]:
        """Which processes on the devices belong to which of our attempts, by pid."""
        shepherds = {}
        for directory, live in self._attempts.live.items():
            pid = live.fields.get("pid") or self._attempts.shepherd_of(directory)
            if pid:
                shepherds[int(pid)] = directory
        if not shepherds:
            return {}
        pids = {p.pid for sample in samples for p in sample.processes or ()}
        owners = reaper.shepherds_of(pids, shepherds)
        return {pid: self._attempts.live[directory] for pid, directory in owners.items()}

    def measure(self, samples: Mapping[str, Sample]) -> list[OpenAttempt]:
        """Fold one poll into the usage of every attempt; those newly seen on a device that they were not given."""
        used = self._energy_used(samples)
        owners = self.owners(samples.values())
        strangers = []
        for live in self._attempts.live.values():
            if live.ended:
                continue
            mine = [samples[uuid] for uuid in live.devices if uuid in samples]
            pids = {pid for pid, owner in owners.items() if owner is live}
            if any(s.processes is None or any(p.pid in pids for p in s.processes) for s in mine):
                live.seen_at = mine[0].at  # where processes cannot be told apart, nobody is called idle
                live.told_idle = False
            before = _before(live, mine)
            for sample in mine:
                used_here = usage.memory_of([sample], pids, before)
                if used_here is not None:
                    live.used_bytes[sample.uuid] = used_here
            if mine:
                energy = [used[uuid] for uuid in live.devices if uuid in used]
                live.usage = usage.add(live.usage, mine, pids, sum(energy) if energy else None, before)
            live.read_progress()
            for uuid, sample in samples.items():
                listed = any(p.pid in pids for p in sample.processes or ())
                if listed and uuid not in live.devices and not live.strange_device:
                    live.strange_device = uuid
                    strangers.append(live)
        return strangers

    def _energy_used(self, samples: Mapping[str, Sample]) -> dict[str, float]:
        """Joules that each board used since its last reading."""
        used: dict[str, float] = {}
        for uuid, sample in samples.items():
            if sample.energy_j is None:
                continue
            before = self._energy.get(uuid)
            if before is not None and sample.energy_j >= before:
                used[uuid] = sample.energy_j - before
            self._energy[uuid] = sample.energy_j
        return used

    def residents(self) -> dict[str, tuple[Resident, ...]]:
        """Which jobs are on which device, with their budgets and what they use."""
        found: dict[str, tuple[Resident, ...]] = {}
        for live in self._attempts.live.values():
            if not live.ended:
                for uuid in live.devices:
                    resident = Resident(live.job.id, live.job.mem_bytes, live.used_bytes.get(uuid))
                    found[uuid] = (*found.get(uuid, ()), resident)
        return found

    def over_budget(self) -> list[tuple[OpenAttempt, str, int]]:
        """Attempts newly seen to use more than they stated: with the device and the bytes there."""
        found = []
        for live in self._attempts.live.values():
            for uuid, used in live.used_bytes.items():
                if 0 < live.job.mem_bytes < used and not live.told_over_budget:
                    live.told_over_budget = True
                    found.append((live, uuid, used))
        return found

    def idle(self, now: float, timeout_s: float) -> list[OpenAttempt]:
        """Attempts whose devices have shown no process of theirs for so long, newly found."""
        found = []
        for live in self._attempts.live.values():
            since = live.row.started_at if live.seen_at is None else live.seen_at
            if live.devices and not live.ended and not live.told_idle and now - since >= timeout_s:
                live.told_idle = True
                found.append(live)
        return found

    def ours_on(self, sample: Sample) -> set[int]:
        """Pids on the device that belong to the attempt that holds it."""
        if not sample.processes:
            return set()
        owners = self.owners([sample])
        return {pid for pid, live in owners.items() if sample.uuid in live.devices and not live.ended}


def _before(live: OpenAttempt, samples: Iterable[Sample]) -> dict[str, int]:
    """What the devices of an attempt had in use when it was launched, by UUID."""
    free = {device.uuid: device.free_bytes for device in live.row.devices}
    return {
        sample.uuid: sample.total_bytes - left
        for sample in samples
        if sample.total_bytes is not None and (left := free.get(sample.uuid)) is not None
    }
