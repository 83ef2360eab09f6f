"""Keeps what jobs with mem=auto show of their memory, for those of the same tag. Decides nothing, starts nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from gpusched.core.jobs.lifecycle import CROWDED_OOM
from gpusched.core.model import DeviceUse
from gpusched.core.plan import learned_memory
from gpusched.core.plan.learned_memory import Learned
from gpusched.core.plan.snapshot import Limits, Resident
from gpusched.dispatcher.attempts.attempt_book import AttemptBook
from gpusched.dispatcher.attempts.open_attempt import OpenAttempt
from gpusched.host.store import Store, TransientError, meta_table


class SiblingBook:
    """`learned` is what the queue knows, as it was stored at the newest poll or since."""

    def __init__(self, store: Store, attempts: AttemptBook) -> None:
        self._store, self._attempts = store, attempts
        self.learned: tuple[Learned, ...] = ()

    def note_poll(self, checks: int) -> None:
        """Take in what the running attempts used at a poll; memory that has not grown for so many polls has settled."""
        self.learned = learned_memory.from_json(meta_table.read(self._store, learned_memory.KEY))
        for attempt in self._attempts:
            use = attempt.use
            if attempt.job.sibling_tag and not attempt.has_ended:
                ready = use.report.get("ready")
                use.trace = learned_memory.follow(use.trace, learned_memory.peak_of(use.usage, ready=ready)[0])
                use.is_settled = use.is_settled or learned_memory.is_settled(use.trace, checks, ready=ready)
                self._learn(attempt)

    def note_ends(self, ended: Iterable[OpenAttempt]) -> None:
        """Take in what these attempts have shown, which have just ended; an out-of-memory beside others is no fault."""
        jobs_on = self.count_jobs()
        for attempt in ended:
            outcome = attempt.outcome
            if not attempt.job.sibling_tag or outcome is None:
                continue
            beside = max(attempt.use.jobs_beside, *(jobs_on[uuid] for uuid in attempt.devices))  # lately, or now
            if outcome.cause in ("gpu_oom", "suspected_oom") and beside:
                attempt.outcome = replace(outcome, cause=CROWDED_OOM)
                self._learn(attempt, jobs=beside + 1)
            else:
                self._learn(attempt, is_whole=outcome.ok and not attempt.is_adopted)

    def count_jobs(self) -> Counter[str]:
        """Return how many attempts are on each device."""
        return Counter(uuid for attempt in self._attempts if not attempt.has_ended for uuid in attempt.devices)

    def _learn(self, attempt: OpenAttempt, *, is_whole: bool = False, jobs: int = 0) -> None:
        """Keep the peak of an attempt if it counts; `jobs` were on its device when it ran out of memory."""
        use, before = attempt.use, self.learned
        for gpu_model in {device.name for device in attempt.row.devices}:
            known = learned_memory.find(self.learned, attempt.job.sibling_tag, gpu_model)
            if known.peak_bytes or use.is_settled or is_whole:
                peak_bytes, source = learned_memory.peak_of(use.usage, ready=use.report.get("ready"))
                known = learned_memory.note_peak(known, peak_bytes, source, is_whole=is_whole)
            if jobs:
                known = learned_memory.note_out_of_memory(known, jobs)
            if known.peak_bytes or known.jobs_max:
                self.learned = learned_memory.keep(self.learned, known)
        if self.learned != before:
            with suppress(TransientError):  # the next poll learns it again
                meta_table.write(self._store, learned_memory.KEY, learned_memory.to_json(self.learned))

    def resident(self, attempt: OpenAttempt, device: DeviceUse, limits: Limits) -> Resident:
        """Return the job of an attempt as one of those on this device."""
        job, use = attempt.job, attempt.use
        share = learned_memory.share(job, device.name, self.learned, limits.tag_mem, limits.safety_factor)
        budget_bytes = share.running_bytes(is_settled=use.is_settled)
        is_learning = bool(job.sibling_tag) and not use.is_settled and not share.is_known
        return Resident(job.id, budget_bytes, use.used_bytes.get(device.uuid), is_learning)
