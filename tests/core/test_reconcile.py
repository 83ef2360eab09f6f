"""What a submission does to a queue that already holds jobs: identity is the text and which occurrence of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.core.jobs.lifecycle import JobEvent, next_state
from gpusched.core.jobs.reconcile import CAUSE_REMOVED, QueueChange, StoredJob, identity, reconcile
from gpusched.core.model import Attributes, JobSpec, JobState
from gpusched.lists.jobfile import parse
from tests.support.paths import TESTS

FILES = TESTS / "cases" / "files"
QUEUED, HELD, RUNNING = JobState.QUEUED, JobState.HELD, JobState.RUNNING
SUCCEEDED, FAILED, CANCELLED = JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED


def specs(*lines: str) -> tuple[JobSpec, ...]:
    """The jobs of a list; an empty line is a line without a job."""
    seen: Counter[str] = Counter()
    found = []
    for number, line in enumerate(lines, 1):
        if line:
            seen[line] += 1
            found.append(JobSpec(line.encode(), line.encode(), number, seen[line]))
    return tuple(found)


@dataclass
class Queue:
    """Jobs as a store keeps them, as far as reconcile is concerned."""

    jobs: dict[int, StoredJob] = field(default_factory=dict)
    texts: dict[int, bytes] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)

    def submit(
        self, found: Sequence[JobSpec], *, complete: bool = True, retry_failed: bool = False, first: int = 0
    ) -> QueueChange:
        change = reconcile(
            found, self.jobs.values(), complete=complete, retry_failed=retry_failed, first_position=first
        )
        for job_id in change.requeue:
            self.move(job_id, JobEvent.REQUEUED)
        for job_id in change.cancel:
            self.move(job_id, JobEvent.CANCELLED, CAUSE_REMOVED)
        for job_id, spec, position in change.keep:
            self.lines[job_id], self.positions[job_id] = spec.line, position
        for spec, position in change.add:
            job_id = len(self.jobs) + 1
            self.jobs[job_id] = StoredJob(job_id, identity(spec), spec.occurrence, QUEUED, "")
            self.texts[job_id], self.lines[job_id], self.positions[job_id] = spec.text, spec.line, position
        return change

    def move(self, job_id: int, event: JobEvent, cause: str = "") -> None:
        job = self.jobs[job_id]
        self.jobs[job_id] = job._replace(state=next_state(job.state, event), cause=cause)

    def set(self, states: Mapping[int, JobState], cause: str = "") -> None:
        for job_id, state in states.items():
            self.jobs[job_id] = self.jobs[job_id]._replace(state=state, cause=cause)

    def waiting(self) -> list[bytes]:
        """The texts of the jobs that will run, in order."""
        found = [job_id for job_id, job in self.jobs.items() if job.state is QUEUED]
        return [self.texts[job_id] for job_id in sorted(found, key=self.positions.__getitem__)]


def ran(queue: Queue, *, failed: Sequence[int] = (), up_to: int | None = None) -> None:
    last = len(queue.jobs) if up_to is None else up_to
    queue.set({n: FAILED if n in failed else SUCCEEDED for n in range(1, last + 1)})


# ---- the case --------------------------------------------------------------------------------------


def test_an_edited_list_runs_what_is_new_and_nothing_twice() -> None:
    queue = Queue()
    queue.submit(parse((FILES / "38-list-v1.txt").read_bytes()).specs)
    ran(queue, failed=[6])
    change = queue.submit(parse((FILES / "38-list-v2.txt").read_bytes()).specs)
    assert queue.waiting() == [
        b"python3 train.py --ix 0",
        b"python3  train.py --ix 3",  # two blanks are another text, and so is a comment behind it
        b"python3 train.py --ix 5",
        b"python3 train.py --ix 6   # late comment",
    ]
    assert [(job_id, spec.line) for job_id, spec, _ in change.keep] == [(2, 3), (3, 5), (4, 6), (1, 9)]
    assert (change.requeue, change.cancel) == ((), ())
    assert queue.jobs[5].state is SUCCEEDED  # --ix 4 is gone: it stays in the totals as done
    assert queue.jobs[6].state is FAILED  # --ix 5 --fail too


def test_a_list_edited_while_half_of_it_has_run() -> None:
    """Interrupted during the fourth: what waited and is gone is cancelled, the rest goes on in the new order."""
    queue = Queue()
    queue.submit(parse((FILES / "38-list-v1.txt").read_bytes()).specs)
    ran(queue, up_to=3)
    change = queue.submit(parse((FILES / "38-list-v2.txt").read_bytes()).specs)
    assert change.cancel == (5, 6, 7)
    assert queue.waiting() == [
        b"python3 train.py --ix 0",
        b"python3  train.py --ix 3",
        b"python3 train.py --ix 3",
        b"python3 train.py --ix 5",
        b"python3 train.py --ix 6   # late comment",
    ]


# ---- the same list again ---------------------------------------------------------------------------


def test_a_new_list_is_added_in_its_order() -> None:
    change = reconcile(specs("a", "", "b", "a"), [])
    assert [(spec.text, spec.line, spec.occurrence, position) for spec, position in change.add] == [
        (b"a", 1, 1, 0),
        (b"b", 3, 1, 1),
        (b"a", 4, 2, 2),
    ]
    assert (change.keep, change.requeue, change.cancel) == ((), (), ())


@pytest.mark.parametrize("state", list(JobState))
def test_the_same_list_again_changes_nothing(state: JobState) -> None:
    queue = Queue()
    queue.submit(specs("a", "b"))
    queue.set({1: state, 2: state})
    change = queue.submit(specs("a", "b"))
    assert change == QueueChange((), ((1, specs("a")[0], 0), (2, specs("a", "b")[1], 1)), (), ())


def test_an_identity_is_the_text_byte_for_byte() -> None:
    texts = [b"a", b"a ", b" a", b"a\xff", b"a\xfe", "a é".encode(), b"A"]
    made = [identity(JobSpec(text, text, 1)) for text in texts]
    assert len(set(made)) == len(texts)
    assert {len(name) for name in made} == {16}
    assert identity(JobSpec(b"x", b"a", 9)) == made[0]


def test_a_directory_or_variables_of_its_own_make_another_job() -> None:
    own = [
        Attributes(),
        Attributes(cwd=b"/data"),
        Attributes(env=((b"A", b"1"),)),
        Attributes(env=((b"A", b"2"),)),
        Attributes(cwd=b"/data", env=((b"A", b"1"),)),
        Attributes(env=((b"A", b"1"), (b"B", b""))),
        Attributes(env=((b"A", b"1B="),)),
    ]
    made = [identity(JobSpec(b"./a", b"./a", 1, attributes=attributes)) for attributes in own]
    assert len(set(made)) == len(own)
    assert made[0] == identity(JobSpec(b"./a", b"./a", 2))
    swapped = Attributes(env=((b"B", b""), (b"A", b"1")))
    assert identity(JobSpec(b"./a", b"./a", 1, attributes=swapped)) == made[5]
    needs = Attributes(gpus=2, retries=3, name="x", prio=5)  # what it needs and what it is called does not
    assert identity(JobSpec(b"./a", b"./a", 9, attributes=needs)) == made[0]


def test_what_runs_may_differ_from_what_the_file_says() -> None:
    """With --strip-gpu-env the command changes and the identity does not."""
    stated = JobSpec(b"CUDA_VISIBLE_DEVICES=3 ./a", b"CUDA_VISIBLE_DEVICES=3 ./a", 1)
    queue = Queue()
    queue.submit([stated])
    assert queue.submit([stated._replace(command=b"./a")]).add == ()


# ---- lines that go and come ------------------------------------------------------------------------


@pytest.mark.parametrize("state", [QUEUED, HELD])
def test_a_removed_line_that_waits_is_cancelled_and_returns_with_the_line(state: JobState) -> None:
    queue = Queue()
    queue.submit(specs("a", "b"))
    queue.set({1: state})
    assert queue.submit(specs("b")).cancel == (1,)
    assert (queue.jobs[1].state, queue.jobs[1].cause) == (CANCELLED, CAUSE_REMOVED)
    assert queue.submit(specs("b")).cancel == ()
    change = queue.submit(specs("b", "a"))
    assert (change.requeue, change.add) == ((1,), ())
    assert queue.waiting() == [b"b", b"a"]
    assert queue.jobs[1].cause == ""


@pytest.mark.parametrize("state", [RUNNING, SUCCEEDED, FAILED, CANCELLED])
def test_a_removed_line_that_does_not_wait_stays_as_it_is(state: JobState) -> None:
    queue = Queue()
    queue.submit(specs("a", "b"))
    queue.set({1: state})
    gone = () if state is RUNNING else (1,)  # of those that have ended, none counts as a failure of the list any more
    assert queue.submit(specs("b")) == QueueChange((), ((2, specs("b")[0], 0),), (), (), gone)


def test_what_a_person_cancelled_stays_so() -> None:
    queue = Queue()
    queue.submit(specs("a", "b"))
    queue.move(1, JobEvent.CANCELLED)
    for lines in (["a", "b"], ["b"], ["b", "a"]):
        change = queue.submit(specs(*lines), retry_failed=True)
        assert (change.requeue, change.cancel) == ((), ())
    assert queue.jobs[1].state is CANCELLED


def test_failed_jobs_are_tried_again_only_if_asked_for() -> None:
    queue = Queue()
    queue.submit(specs("a", "b", "c"))
    ran(queue, failed=[1, 3])
    assert queue.submit(specs("a", "b")).requeue == ()
    assert queue.submit(specs("a", "b"), retry_failed=True).requeue == (1,)  # c is no longer in the list
    assert queue.waiting() == [b"a"]


def test_the_last_occurrence_is_the_one_that_goes() -> None:
    queue = Queue()
    queue.submit(specs("a", "a", "a"))
    ran(queue, up_to=1)
    assert queue.submit(specs("a", "a")).cancel == (3,)
    assert queue.submit(specs("a")).cancel == (2,)
    assert queue.submit(specs("a", "a", "a", "a")).requeue == (2, 3)
    assert len(queue.waiting()) == 3


def test_order_and_line_numbers_follow_the_file() -> None:
    queue = Queue()
    queue.submit(specs("a", "b", "c"))
    queue.submit(specs("", "c", "x", "a", "", "b"))
    assert queue.waiting() == [b"c", b"x", b"a", b"b"]
    assert queue.lines == {1: 4, 2: 6, 3: 2, 4: 3}


# ---- streams ---------------------------------------------------------------------------------------


def test_a_stream_that_has_not_ended_cancels_nothing() -> None:
    queue = Queue()
    queue.submit(specs("a", "b", "c"))
    change = queue.submit(specs("a", "x"), complete=False)
    assert (change.cancel, [spec.text for spec, _ in change.add]) == ((), [b"x"])
    assert queue.submit(specs("a", "x")).cancel == (2, 3)


def test_pieces_of_a_stream_are_placed_one_after_the_other() -> None:
    queue = Queue()
    whole = specs("a", "b", "a", "c")
    queue.submit(whole[:2], complete=False)
    queue.submit(whole[2:], complete=False, first=2)
    assert queue.waiting() == [b"a", b"b", b"a", b"c"]
    assert sorted(queue.positions.values()) == [0, 1, 2, 3]


# ---- properties ------------------------------------------------------------------------------------

LISTS = st.lists(st.sampled_from(["", "a", "a", "b", "c", "d"]), max_size=7)
STATES = st.dictionaries(st.integers(1, 5), st.sampled_from(JobState), max_size=4)


@settings(deadline=None, max_examples=30)
@given(LISTS, STATES, LISTS, st.booleans())
def test_every_job_of_the_list_is_in_the_queue_once(
    before: list[str], states: dict[int, JobState], after: list[str], retry_failed: bool
) -> None:
    queue = Queue()
    queue.submit(specs(*before))
    queue.set({n: state for n, state in states.items() if n in queue.jobs})
    found = specs(*after)
    known = dict(queue.jobs)
    change = queue.submit(found, retry_failed=retry_failed)
    assert len(change.add) + len(change.keep) == len(found)
    held = Counter((job.identity, job.occurrence) for job in queue.jobs.values())
    assert set(held.values()) <= {1}
    assert {(identity(spec), spec.occurrence) for spec in found} <= held.keys()
    kept = {job_id for job_id, _, _ in change.keep}
    assert not kept.intersection(change.cancel)
    assert kept.issuperset(change.requeue)
    for job_id, job in known.items():
        if job_id not in change.requeue + change.cancel:
            assert queue.jobs[job_id].state is job.state
    texts = [spec.text for spec in found]
    assert [text for text in queue.waiting() if text in texts] == queue.waiting()


@settings(deadline=None, max_examples=30)
@given(LISTS, STATES, LISTS)
def test_an_edit_that_is_taken_back_leaves_the_queue_as_it_was(
    before: list[str], states: dict[int, JobState], edited: list[str]
) -> None:
    queue = Queue()
    queue.submit(specs(*before))
    queue.set({n: state for n, state in states.items() if n in queue.jobs and state is not HELD})
    jobs, waiting, lines = dict(queue.jobs), queue.waiting(), dict(queue.lines)
    queue.submit(specs(*edited))
    queue.submit(specs(*before))
    assert {job_id: queue.jobs[job_id] for job_id in jobs} == jobs
    assert queue.waiting() == waiting
    assert {job_id: queue.lines[job_id] for job_id in lines} == lines
    again = queue.submit(specs(*before))
    assert (again.add, again.requeue, again.cancel) == ((), (), ())
