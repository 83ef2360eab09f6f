"""Measures what the open attempts use of their devices, by process: folded over polls. Ends and starts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from gpusched.common import processes
from gpusched.core.documents import parse_progress
from gpusched.core.jobs import usage
from gpusched.core.model import ForeignUse, Sample
from gpusched.core.plan.availability import OwnUse
from gpusched.core.plan.snapshot import Limits, Resident
from gpusched.dispatcher.attempts.attempt_book import AttemptBook
from gpusched.dispatcher.attempts.open_attempt import OpenAttempt
from gpusched.dispatcher.attempts.sibling_book import SiblingBook
from gpusched.dispatcher.timers import Moment
from gpusched.host.attempts import reaper
from gpusched.host.store import Store


class UsageMeter:
    def __init__(self, store: Store, attempts: AttemptBook) -> None:
        self.siblings = SiblingBook(store, attempts)
        self._attempts, self._has_host_pids = attempts, processes.is_first_pid_namespace()
        self._energy: dict[str, float] = {}  # the boards' running totals at the last reading
        self._ours: set[int] = set()  # pids that were ours at some reading, and are still listed

    def owners(self, samples: Iterable[Sample]) -> dict[int, OpenAttempt]:
        """Return which processes on the devices belong to which of our attempts, by pid."""
        attempts = self._attempts.shepherd_pids()
        if not attempts:
            return {}
        pids = {process.pid for sample in samples for process in sample.processes or ()}
        shepherds = reaper.shepherds_of(pids, {pid: attempt.directory for pid, attempt in attempts.items()})
        by_directory = {attempt.directory: attempt for attempt in attempts.values()}
        return {pid: by_directory[directory] for pid, directory in shepherds.items()}

    def measure(self, samples: Mapping[str, Sample], now: Moment) -> None:
        """Fold one poll into the use of each attempt; note the devices that one uses without having been given them."""
        energy = self._energy_used(samples)
        owners = self.owners(samples.values())
        foreign = self._find_foreign(samples.values(), owners.keys())
        jobs_on = self.siblings.count_jobs()
        for attempt in self._attempts:
            if attempt.has_ended:
                continue
            beside = max((jobs_on[uuid] for uuid in attempt.devices), default=1) - 1
            attempt.use.note_beside(beside, now.monotonic_s)
            pids = {pid for pid, owner in owners.items() if owner is attempt}
            own = [samples[uuid] for uuid in attempt.devices if uuid in samples]
            others = usage.foreign_use_of(own, foreign, alone=attempt.job.alone)
            self._measure_own(attempt, own, pids, energy, others, now)
            attempt.read_progress()
            for uuid, sample in samples.items():
                listed = any(p.pid in pids for p in sample.processes or ())
                if listed and uuid not in attempt.devices and not attempt.use.unassigned_device:
                    attempt.use.unassigned_device = uuid

    def _measure_own(
        self,
        attempt: OpenAttempt,
        own: list[Sample],
        pids: set[int],
        energy: Mapping[str, float],
        others: ForeignUse,
        now: Moment,
    ) -> None:
        """Fold the samples of its own devices into the use of one attempt."""
        if any(s.processes is None or any(p.pid in pids for p in s.processes) for s in own):
            attempt.use.seen_s = now.monotonic_s  # where processes cannot be told apart, nobody is called idle
            attempt.use.reported.discard("idle")
        before = _used_at_launch(attempt, own) if attempt.use.is_alone else {}
        attempt.use.report = parse_progress(attempt.use.progress)  # not newer than the samples
        reported_bytes = attempt.use.report.get("memory_bytes")
        for sample in own:
            used_bytes = usage.memory_on(sample, pids, before, reported_bytes)
            if used_bytes is not None:
                attempt.use.used_bytes[sample.uuid] = used_bytes
        if own:
            joules = [energy[uuid] for uuid in attempt.devices if uuid in energy]
            joules_used = sum(joules) if joules else None
            attempt.use.usage = usage.add(
                attempt.use.usage, own, pids, joules_used, before, others, reported_bytes=reported_bytes
            )

    def _find_foreign(self, samples: Iterable[Sample], ours: Set[int]) -> set[int]:
        """Return the pids on the devices that are not ours; nobody knows whose one was that has ended meanwhile."""
        listed = {process.pid for sample in samples for process in sample.processes or ()}
        self._ours = (self._ours & listed) | ours
        return {pid for pid in listed - self._ours if processes.process_stat(pid) is not None}

    def _energy_used(self, samples: Mapping[str, Sample]) -> dict[str, float]:
        """Return the joules that each board has used since its last reading."""
        used: dict[str, float] = {}
        for uuid, sample in samples.items():
            if sample.energy_j is None:
                continue
            before = self._energy.get(uuid)
            if before is not None and sample.energy_j >= before:
                used[uuid] = sample.energy_j - before
            self._energy[uuid] = sample.energy_j
        return used

    def residents(self, limits: Limits) -> dict[str, tuple[Resident, ...]]:
        """Return which jobs are on which device, with their budgets and what they use."""
        residents: dict[str, tuple[Resident, ...]] = {}
        for attempt in self._attempts:
            if not attempt.has_ended:
                for device in attempt.row.devices:
                    resident = self.siblings.resident(attempt, device, limits)
                    residents[device.uuid] = (*residents.get(device.uuid, ()), resident)
        return residents

    def own_use(self, sample: Sample) -> OwnUse:
        """Return what is ours on the device: the processes of the attempts that hold it, and what these report."""
        on_it = [each for each in self._attempts if sample.uuid in each.devices and not each.has_ended]
        owners = self.owners([sample]) if sample.processes and on_it else {}
        pids = frozenset(pid for pid, owner in owners.items() if sample.uuid in owner.devices and not owner.has_ended)
        reported = [parse_progress(each.use.progress).get("memory_bytes") for each in on_it]
        others = {process.pid for process in sample.processes or ()} - pids
        gone = frozenset(pid for pid in others if processes.has_ended(pid))
        total = None if None in reported else sum(each or 0 for each in reported)
        return OwnUse(pids, bool(on_it), total, gone, has_host_pids=self._has_host_pids)


def _used_at_launch(attempt: OpenAttempt, samples: Iterable[Sample]) -> dict[str, int]:
    """Return the bytes that the devices of an attempt had in use when it was launched, by UUID."""
    free = {device.uuid: device.free_bytes for device in attempt.row.devices}
    return {
        sample.uuid: sample.total_bytes - left
        for sample in samples
        if sample.total_bytes is not None and (left := free.get(sample.uuid)) is not None
    }
