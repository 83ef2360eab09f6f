"""Which devices are kept out of use because jobs fail on them, and on no other."""

from __future__ import annotations

from gpusched.core.model import MIB, AttemptFact, Outcome, OutcomeKind, Sample
from gpusched.core.plan import quarantine
from gpusched.core.plan.availability import Availability, DeviceState, bar
from gpusched.core.plan.quarantine import PAUSE_FIRST_S, PAUSE_MAX_S, Records
from tests.support import build

FAILED, OK = Outcome(OutcomeKind.EXITED, 1), Outcome(OutcomeKind.EXITED, 0)


def end(
    records: Records, job: int, gpu: int, now_s: float, outcome: Outcome = FAILED, lasted_s: float = 1.0
) -> Records:
    attempt = build.attempt(job, gpu, fact=AttemptFact.EXITED, outcome=outcome, lasted_s=lasted_s)
    return quarantine.note_end(records, attempt, now_s)


def fail(records: Records, jobs: range, gpu: int, now_s: float) -> Records:
    for job in jobs:
        records = end(records, job, gpu, now_s)
    return records


def after_review(records: Records, now_s: float, *running: tuple[int, float]) -> tuple[Records, dict[str, str]]:
    """The records, and the devices on which nothing starts. `running`: GPU and age of each attempt."""
    attempts = [((f"GPU-{gpu}",), age_s) for gpu, age_s in running]
    records = quarantine.review(records, attempts, now_s)
    closed = quarantine.suspected(records, attempts, now_s) | quarantine.quarantined(records, now_s)
    return records, closed


def test_three_jobs_in_a_row_while_another_device_does_well() -> None:
    records = end(fail({}, range(1, 3), 0, 10.0), 8, 1, 11.0, OK)
    assert after_review(records, 11.0)[1] == {}
    records = end(records, 3, 0, 12.0)
    records, closed = after_review(records, 12.0)
    assert closed == {
        "GPU-0": "in quarantine: 3 jobs in a row failed on it within 10 s, while jobs on other GPUs did not"
    }
    assert after_review(records, 12.0 + PAUSE_FIRST_S - 1)[1].keys() == {"GPU-0"}
    assert after_review(records, 12.0 + PAUSE_FIRST_S)[1] == {}


def test_a_job_that_runs_for_a_minute_elsewhere_says_the_same() -> None:
    records = fail({}, range(1, 4), 0, 10.0)
    assert "waits how those on other GPUs end" in after_review(records, 10.0, (1, 59.0))[1]["GPU-0"]
    assert "in quarantine" in after_review(records, 11.0, (1, 60.0))[1]["GPU-0"]


def test_a_suspect_waits_for_a_witness_and_not_for_ever() -> None:
    records = fail({}, range(1, 4), 0, 10.0)
    assert after_review(records, 10.0)[1] == {}  # nobody can say more
    assert after_review(records, 10.0, (0, 1.0))[1] == {}
    assert after_review(records, 69.0, (1, 3.0))[1].keys() == {"GPU-0"}
    assert after_review(records, 70.0, (1, 3.0))[1] == {}


def test_jobs_that_fail_everywhere_quarantine_nothing() -> None:
    records: Records = {}
    for n in range(30):
        records = end(records, n, n % 3, float(n))
        records, closed = after_review(records, float(n), *[(gpu, 0.5) for gpu in range(3)])
    assert closed == {} and quarantine.quarantined(records, 30.0) == {}


def test_a_success_before_the_same_failures_elsewhere_is_no_witness() -> None:
    records = end(
        end(end({}, 11, 1, 1.0), 8, 0, 1.1, OK), 14, 0, 1.3
    )  # a long job of another kind, then the same there
    assert after_review(fail(records, range(15, 17), 1, 1.5), 1.5)[1] == {}


def test_a_success_that_began_before_the_failures_is_no_witness() -> None:
    """As in a list whose bad jobs follow the good ones."""
    records = end(fail({}, range(1, 4), 0, 10.0), 8, 1, 11.0, OK, lasted_s=3.0)
    assert after_review(records, 11.0)[1] == {}
    together = end(records, 9, 1, 12.0, OK, lasted_s=3.1)
    assert "in quarantine" in after_review(together, 12.0)[1]["GPU-0"]


def test_what_is_not_three_different_jobs_in_a_row() -> None:
    """The same job, a slow failure or a success in between, ends that are nobody's fault; good news from before."""
    cases = [
        fail(fail({}, range(1, 2), 0, 1.0), range(1, 2), 0, 2.0),
        end(fail({}, range(1, 3), 0, 1.0), 3, 0, 2.0, lasted_s=10.0),
        end(end(fail({}, range(1, 3), 0, 1.0), 3, 0, 2.0, OK), 4, 0, 2.0),
        end(fail({}, range(1, 3), 0, 1.0), 3, 0, 2.0, Outcome(OutcomeKind.INTERRUPTED, signal=15)),
        fail(end({}, 9, 1, 0.4, OK), range(1, 4), 0, 1.0),
    ]
    for records in cases[:-1]:
        assert after_review(end(records, 8, 1, 3.0, OK), 3.0)[1] == {}
    assert after_review(cases[-1], 3.0)[1] == {}


def test_the_next_job_there_decides() -> None:
    records, _ = after_review(end(fail({}, range(1, 4), 0, 0.0), 8, 1, 1.0, OK), 1.0)
    now_s, pauses = 1.0 + PAUSE_FIRST_S, []
    for job in range(10, 16):
        assert quarantine.on_trial(records) == {"GPU-0"}
        records, closed = after_review(end(records, job, 0, now_s), now_s)
        assert "the job that tried it again" in closed["GPU-0"]
        pauses.append(records["GPU-0"].until_s - now_s)
        now_s = records["GPU-0"].until_s
    assert pauses == [600.0, 1200.0, 2400.0, PAUSE_MAX_S, PAUSE_MAX_S, PAUSE_MAX_S]
    records = end(records, 20, 0, now_s, OK)
    assert quarantine.on_trial(records) == set() and after_review(end(records, 21, 0, now_s), now_s)[1] == {}


def test_a_job_that_was_there_already_does_not_count_against_a_device_in_quarantine() -> None:
    records, _ = after_review(end(fail({}, range(1, 4), 0, 0.0), 8, 1, 1.0, OK), 1.0)
    records, _ = after_review(end(records, 4, 0, 2.0), 2.0)
    records, closed = after_review(end(records, 5, 0, 3.0, OK), 3.0)
    assert closed.keys() == {"GPU-0"} and quarantine.on_trial(records) == {"GPU-0"}
    assert records["GPU-0"].until_s == 1.0 + PAUSE_FIRST_S
    assert after_review(records, records["GPU-0"].until_s)[1] == {}


def test_only_new_errors_of_the_memory_count() -> None:
    def read(records: Records, now_s: float, **more: object) -> tuple[Records, dict[str, str]]:
        records = quarantine.note_samples(records, [Sample("GPU-0", now_s, MIB, **more)], now_s)  # type: ignore[arg-type]
        return after_review(records, now_s)

    records, closed = read({}, 0.0, uncorrectable=4)
    assert closed == {}
    records, _ = read(records, 1.0)  # cannot be read
    records, closed = read(records, 2.0, uncorrectable=4)
    assert closed == {}
    records, closed = read(records, 3.0, uncorrectable=5)
    assert closed == {"GPU-0": "in quarantine: it has new uncorrectable memory errors"}
    _, closed = read({}, 4.0, remap_failed=True)
    assert closed == {"GPU-0": "in quarantine: it can no longer remap rows of its memory"}


def test_a_barred_device_takes_no_job() -> None:
    def barred(state: DeviceState) -> Availability:
        return bar(Availability("GPU-0", 2, state, "as it is"), "in quarantine")

    assert (barred(DeviceState.FREE).state, barred(DeviceState.FREE).why) == (DeviceState.SET_ASIDE, "in quarantine")
    assert (barred(DeviceState.RUNNING).state, barred(DeviceState.RUNNING).count) == (DeviceState.RUNNING, 0)
    assert barred(DeviceState.LOST).why == "as it is"
