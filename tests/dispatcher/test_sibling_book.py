"""Jobs with mem=auto on cards whose memory can run out, by a simulated clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpusched.common.quantities import AUTO_MEMORY
from gpusched.core.jobs.job import round_budget
from gpusched.core.jobs.lifecycle import CROWDED_OOM, JobEvent, judge
from gpusched.core.model import AttemptFact, DeviceUse, JobRow, Outcome, OutcomeKind, Usage
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Claim, DeviceView, Limits, Release, Snapshot, Start
from gpusched.dispatcher.attempts.open_attempt import AttemptUse, OpenAttempt
from gpusched.dispatcher.attempts.sibling_book import SiblingBook
from gpusched.host.attempts.reaper import LifeReading
from gpusched.host.store import Store
from tests.core.test_placement import CHECKS, card
from tests.support import build
from tests.support.build import GIB

TOTAL_GIB = 24
MODEL = "NVIDIA L4"
POLL_S = 10.0
LASTS_S, LAST_MINUTE_S = 300.0, 60.0
JOBS = 12


@dataclass
class Cards:
    """Two cards, and jobs that take `base_gib`, and `peak_gib` in their last minute."""

    store: Store
    base_gib: float
    peak_gib: float
    waiting: list[JobRow]
    places: int = 4  # --max-jobs-per-gpu
    is_spike: bool = False  # they take it for a moment that no poll sees
    now: float = 0.0
    held: set[str] = field(default_factory=set)
    running: list[OpenAttempt] = field(default_factory=list)
    ends: list[tuple[JobRow, Outcome]] = field(default_factory=list)
    most: int = 0  # jobs on one card
    fewest: int = JOBS  # on one card, while others could have joined and after the first had ended

    def __post_init__(self) -> None:
        attempts: Any = self.running
        self.book = SiblingBook(self.store, attempts)

    def on(self, uuid: str) -> list[OpenAttempt]:
        return [attempt for attempt in self.running if uuid in attempt.devices]

    def used(self, attempt: OpenAttempt) -> int:
        return attempt.use.used_bytes.get(attempt.devices[0], 0)

    def left_s(self, attempt: OpenAttempt) -> float:
        lasts_s = LASTS_S + 40 * (attempt.job.id % 3)  # they meet each other in many ways
        return attempt.opened_s + lasts_s - self.now

    def run(self) -> Cards:
        """Run all jobs to their ends."""
        while (self.waiting or self.running) and self.now < 100_000:
            self.start()
            self.count()
            self.now += POLL_S
            self.poll()
        return self

    def poll(self) -> None:
        """Let the jobs take what they want, in their order; who finds too little runs out of memory."""
        ended: list[OpenAttempt] = []
        had = Counter({f"GPU-{n}": sum(self.used(each) for each in self.on(f"GPU-{n}")) for n in range(2)})
        for attempt in self.running:
            left_s, (uuid,) = self.left_s(attempt), attempt.devices
            attempt.use.note_beside(len(self.on(uuid)) - 1, self.now)
            is_last = left_s <= LAST_MINUTE_S if not self.is_spike else left_s == LAST_MINUTE_S
            more = round((self.peak_gib if is_last else self.base_gib) * GIB) - self.used(attempt)
            if left_s <= 0 or had[uuid] + more > (TOTAL_GIB - 0.01) * GIB:
                cause = "gpu_oom" if left_s > 0 else ""
                attempt.outcome = Outcome(OutcomeKind.EXITED, int(bool(cause)), cause=cause)
                attempt.life = LifeReading(AttemptFact.EXITED)
                ended.append(attempt)
            elif not self.is_spike or not is_last:  # no poll sees a spike
                had[uuid] += more
                attempt.use.used_bytes = {uuid: self.used(attempt) + more}
                peak_bytes = max(attempt.use.usage.peak_device_bytes or 0, self.used(attempt))
                attempt.use.usage = Usage(peak_device_bytes=peak_bytes)
        self.book.note_poll(CHECKS)
        self.book.note_ends(ended)
        for attempt in ended:
            self.running.remove(attempt)
            assert attempt.outcome is not None
            verdict = judge(attempt.outcome, attempt.job, cancel_asked=False)
            self.ends.append((attempt.job, attempt.outcome))
            if verdict.event is JobEvent.INTERRUPTED:
                self.waiting.insert(0, replace(attempt.job, losses=verdict.losses))
            else:
                assert verdict.event is JobEvent.SUCCEEDED, attempt.outcome

    def start(self) -> None:
        while True:
            actions = make_plan(self.snapshot()).actions
            if not any(isinstance(action, Start | Claim) for action in actions):
                return
            for action in actions:
                if isinstance(action, Claim):
                    self.held.update(action.devices)
                elif isinstance(action, Release):
                    self.held.discard(action.uuid)
                elif isinstance(action, Start):
                    job = next(job for job in self.waiting if job.id == action.job_id)
                    self.waiting.remove(job)
                    self.running.append(self.attempt(job, action.devices[0]))

    def attempt(self, job: JobRow, uuid: str) -> OpenAttempt:
        row = build.attempt_row(job.id, devices=(DeviceUse(uuid, 0, MODEL),))
        return OpenAttempt(job, row, (uuid,), "/d", (), self.now, AttemptUse(self.now))

    def snapshot(self) -> Snapshot:
        limits = Limits(2, jobs_per_gpu=self.places)
        attempts = tuple(build.attempt(each.job.id, *each.devices) for each in self.running)
        devices = tuple(self.view(n, limits) for n in range(2))
        snapshot = Snapshot(1000.0, limits, devices, tuple(self.waiting), attempts, max_checks=CHECKS)
        return replace(snapshot, learned=self.book.learned)

    def view(self, n: int, limits: Limits) -> DeviceView:
        on_it = self.on(f"GPU-{n}")
        view = card(n, *([0.0] * len(on_it)), total_gib=TOTAL_GIB, held=f"GPU-{n}" in self.held, name=MODEL)
        residents = tuple(self.book.resident(each, each.row.devices[0], limits) for each in on_it)
        return replace(view, residents=residents)

    def count(self) -> None:
        for n in range(2):
            jobs = len(self.on(f"GPU-{n}"))
            self.most = max(self.most, jobs)
            if self.ends and self.waiting:
                self.fewest = min(self.fewest, jobs)


def jobs_of(**more: Any) -> list[JobRow]:
    return [build.job(n, tags=("t",), **more) for n in range(1, JOBS + 1)]


def check_size(
    store: Store, tmp_path: Path, peak_gib: float, base_gib: float, places: int = 4, *, is_spike: bool = False
) -> Cards:
    jobs = jobs_of(mem_bytes=round_budget(round(peak_gib * GIB)))
    stated = Cards(store, base_gib, peak_gib, jobs, places, is_spike).run()
    assert all(outcome.ok for _, outcome in stated.ends)
    with_tag = Store(str(tmp_path / f"{peak_gib}-{base_gib}.db"), create=True)
    auto = Cards(with_tag, base_gib, peak_gib, jobs_of(stated_mem_bytes=AUTO_MEMORY), places, is_spike).run()
    with_tag.close()
    assert sorted(job.id for job, outcome in auto.ends if outcome.ok) == [*range(1, JOBS + 1)]
    assert all(outcome.cause == CROWDED_OOM for _, outcome in auto.ends if not outcome.ok)
    assert auto.fewest >= stated.most - 1
    assert sum(not outcome.ok for _, outcome in auto.ends) <= JOBS * 4 // 3  # most of them before a peak was seen
    return auto


SIZES = [round(0.3 + 0.143 * n, 3) for n in range(160)]  # GiB, up to 23


@pytest.mark.parametrize("gib", SIZES[8::19])
@pytest.mark.parametrize(("base", "places"), [(1.0, 4), (0.9, 4), (0.4, 4), (0.2, 8)])
def test_nearly_as_many_share_a_card_as_if_they_had_stated_their_memory(
    store: Store, tmp_path: Path, gib: float, base: float, places: int
) -> None:
    check_size(store, tmp_path, gib, gib * base, places)
    check_size(store, tmp_path, gib + 0.1, gib * base, places, is_spike=True)


@pytest.mark.soak
@pytest.mark.parametrize(("base", "is_spike"), [(0.4, True), (1.0, False), (0.4, False), (0.2, False)])
def test_of_160_sizes(store: Store, tmp_path: Path, base: float, is_spike: bool) -> None:
    found = [check_size(store, tmp_path, gib, gib * base, is_spike=is_spike) for gib in SIZES]
    ooms = sum(not outcome.ok for cards in found for _, outcome in cards.ends)
    print(f"{ooms} of {JOBS * len(SIZES)} jobs ran out of memory once more")
    assert (ooms > 0) == (base < 1)


# ---- ends ------------------------------------------------------------------------------------------


def ended_alone(store: Store, beside_s: float | None, outcome: Outcome, **more: Any) -> tuple[str, SiblingBook]:
    """Return the cause of the end of a job that had another one beside it until so long ago, and what was learned."""
    cards = Cards(store, 9, 9, [])
    attempt = cards.attempt(jobs_of(stated_mem_bytes=AUTO_MEMORY)[0], "GPU-0")
    attempt.outcome, attempt.use.usage = outcome, Usage(peak_device_bytes=9 * GIB)
    attempt.is_adopted = more.get("is_adopted", False)
    if beside_s is not None:
        attempt.use.note_beside(1, 0.0)
        attempt.use.note_beside(0, beside_s)
    cards.book.note_ends([attempt])
    assert attempt.outcome is not None
    return attempt.outcome.cause, cards.book


@pytest.mark.parametrize(("beside_s", "cause"), [(None, "gpu_oom"), (59, CROWDED_OOM), (61, "gpu_oom")])
def test_who_was_beside_a_job_lately_counts_when_its_end_is_seen(
    store: Store, beside_s: float | None, cause: str
) -> None:
    found, book = ended_alone(store, beside_s, Outcome(OutcomeKind.EXITED, 1, cause="gpu_oom"))
    assert found == cause
    suspected, _ = ended_alone(store, beside_s, Outcome(OutcomeKind.EXITED, 1, cause="suspected_oom"))
    assert suspected == cause.replace("gpu_oom", "suspected_oom")
    assert [each.jobs_max for each in book.learned] == ([1] if cause == CROWDED_OOM else [])


@pytest.mark.parametrize(("code", "more", "is_whole"), [(0, {}, [True]), (1, {}, []), (0, {"is_adopted": True}, [])])
def test_only_a_job_that_was_seen_from_its_start_to_its_end_tells_all(
    store: Store, code: int, more: dict[str, bool], is_whole: list[bool]
) -> None:
    _, book = ended_alone(store, None, Outcome(OutcomeKind.EXITED, code), **more)
    assert [each.is_whole for each in book.learned] == is_whole
