"""The head and its agents, by direct calls: leases, lost and late messages, cuts and partitions. No Ray."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.cluster.leases import LeaseTerms
from gpusched.cluster.messages import Reply, Request
from gpusched.common.errors import GpuschedError
from gpusched.core.model import JobState, OutcomeKind
from gpusched.host.store import DiskFull, Store, attempt_table, job_table, meta_table
from gpusched.host.store.cluster import lease_table
from gpusched.operations.change.settings import set_settings
from tests.support.cluster import TERMS, HeadBox, NodeBox, World, states, talk


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # each message costs some syncs
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield World(Path(path))


def job(number: int, length: float = 10.0, code: int = 0) -> str:
    return f"j{number}/{length}/{code}"


def step(world: World, head: HeadBox, nodes: list[NodeBox], seconds: float = 1.0) -> None:
    for node in nodes:
        talk(head, node)
        node.work()
        talk(head, node)
    world.now += seconds


def run(world: World, head: HeadBox, nodes: list[NodeBox], seconds: float) -> None:
    until = world.now + seconds
    while world.now < until:
        step(world, head, nodes)


def settle(world: World, head: HeadBox, nodes: list[NodeBox], seconds: float = 3000) -> None:
    """Go on until all jobs have ended, at most for so long."""
    until = world.now + seconds
    while world.now < until and not states(head).keys() <= {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}:
        step(world, head, nodes, 4.0)


def test_a_lease_that_leaves_no_time_to_renew_it_is_refused() -> None:
    with pytest.raises(GpuschedError, match="too short"):
        LeaseTerms(lease_s=59, grace_s=10, margin_s=10).check()
    assert LeaseTerms(lease_s=60, grace_s=10, margin_s=10).check().fence_after_s == 40


def test_all_gpus_of_all_nodes_work_and_no_job_runs_twice(world: World) -> None:
    head, nodes = HeadBox(world), [NodeBox(world, "a", 4), NodeBox(world, "b", 4, busy=2)]
    for n in range(40):
        head.add(job(n))
    run(world, head, nodes, 90)
    assert states(head) == {JobState.SUCCEEDED: 40}
    assert Counter(each.job for each in world.executions) == Counter({job(n): 1 for n in range(40)})
    assert {each.node for each in world.executions} == {"a", "b"}
    with Store(head.queue.database) as store:
        used = {d.uuid for n in range(1, 41) for row in attempt_table.attempts(store, n) for d in row.devices}
    assert used == {*(f"GPU-a-{n}" for n in range(4)), "GPU-b-2", "GPU-b-3"}


def test_the_exit_code_is_that_of_the_node_and_the_head_tries_again(world: World) -> None:
    head, nodes = HeadBox(world), [NodeBox(world, "a")]
    world.codes["x/1/0"] = [7, 0]
    job_id = head.add("x/1/0")
    run(world, head, nodes, 20)
    with Store(head.queue.database) as store:
        ends = [row.outcome for row in attempt_table.attempts(store, job_id)]
        assert [end and end.exit_code for end in ends] == [7, 0]
        assert job_table.get(store, job_id).tries == 2


def test_a_node_that_is_cut_off_ends_its_job_before_another_begins_it(world: World) -> None:
    head, a, b = HeadBox(world), NodeBox(world, "a", 1), NodeBox(world, "b", 1)
    head.add(job(1, 500))
    run(world, head, [a], 5)
    began = world.now
    while world.now < began + 3 * TERMS.lease_s:  # a hears nothing
        a.work()
        step(world, head, [b])
    first, second = world.executions
    assert (first.node, second.node) == ("a", "b")
    assert first.ended is not None and first.ended + TERMS.margin_s <= second.began
    reply = talk(head, a)  # it comes back
    assert reply is not None and len(reply.done) == 1
    settle(world, head, [a, b])
    assert states(head) == {JobState.SUCCEEDED: 1}
    assert not world.overlaps()


def test_a_result_that_comes_after_the_lease_is_refused_and_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    head, a, b = HeadBox(world), NodeBox(world, "a", 1), NodeBox(world, "b", 1)
    head.add(job(1, 20))
    run(world, head, [a], 3)
    run(world, head, [], 30)
    a.work()  # it succeeds, and nobody hears of it
    run(world, head, [b], 2 * TERMS.lease_s)
    assert states(head) == {JobState.SUCCEEDED: 1}
    talk(head, a)
    assert "stale report of node a refused: job 1, attempt 1 is ended there" in caplog.text
    with Store(head.queue.database) as store:
        assert [row.outcome and row.outcome.kind for row in attempt_table.attempts(store, 1)] == [
            OutcomeKind.LOST,
            OutcomeKind.EXITED,
        ]


def test_a_reserved_job_never_begins_once_its_lease_has_run_out(world: World) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 1)
    head.add(job(1, 5))
    head.add(job(2, 5))
    talk(head, a)
    talk(head, a)
    world.now += TERMS.fence_after_s + 1
    a.work()
    assert world.executions == []
    run(world, head, [a], 30)
    assert states(head) == {JobState.SUCCEEDED: 2}


def test_a_restarted_head_gives_each_lease_a_full_period(world: World) -> None:
    head, a, b = HeadBox(world), NodeBox(world, "a", 1), NodeBox(world, "b", 1)
    head.add(job(1, 200))
    run(world, head, [a], 3)
    head.stop()
    world.now += TERMS.lease_s - 1
    a.work()
    head.start()
    run(world, head, [b], TERMS.lease_s - 1)
    assert [each.node for each in world.executions] == ["a"]
    run(world, head, [b], 5)
    assert [each.node for each in world.executions] == ["a", "b"]
    assert not world.overlaps()


def test_a_head_that_looks_ends_leases_while_no_node_speaks(world: World) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 1)
    head.add(job(1, 200))
    run(world, head, [a], 3)
    assert head.head is not None
    world.now += TERMS.lease_s - 2
    assert len(head.head.expire()) == 1
    world.now += 2
    assert head.head.expire() == {}
    assert states(head) == {JobState.QUEUED: 1}
    assert [node.running for node in head.head.view().nodes] == [0]


def test_a_head_with_a_shorter_lease_keeps_to_the_one_that_it_gave(world: World) -> None:
    head, a, b = HeadBox(world), NodeBox(world, "a", 1), NodeBox(world, "b", 1)
    head.add(job(1, 200))
    run(world, head, [a], 3)
    head.stop()
    short = TERMS._replace(lease_s=30, grace_s=5, margin_s=5)
    head.terms = short
    head.start()
    b.stop()
    b.terms = short
    b.start()
    run(world, head, [b], TERMS.lease_s - 2)
    assert [each.node for each in world.executions] == ["a"]
    a.work()
    run(world, head, [b], 10)
    assert [each.node for each in world.executions] == ["a", "b"]
    assert not world.overlaps()


def test_a_restarted_head_or_agent_leaves_what_runs_alone(world: World) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 2)
    for n in range(4):
        head.add(job(n, 20))
    for _ in range(12):
        run(world, head, [a], 5)
        head.stop()
        head.start()
        a.stop()
        a.start()
    assert states(head) == {JobState.SUCCEEDED: 4}
    assert len(world.executions) == 4


def test_doubled_and_late_requests_change_nothing(world: World) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 2)
    head.add(job(1, 5))
    assert head.head is not None and a.agent is not None
    seen: list[Request] = []
    for _ in range(20):
        request = a.agent.request()
        seen.append(request)
        reply = head.head.exchange(request)
        assert [head.head.exchange(each).seq for each in seen] == [-1] * len(seen)
        a.agent.apply(request, reply)
        a.agent.apply(request, reply)
        a.work()
        world.now += 1
    assert states(head) == {JobState.SUCCEEDED: 1}
    assert len(world.executions) == 1


def test_a_reply_that_was_overtaken_is_passed_over(world: World) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 1)
    head.add(job(1, 5))
    talk(head, a)
    assert head.head is not None and a.agent is not None
    request = a.agent.request()
    late = head.head.exchange(request)
    assert len(late.grants) == 1
    run(world, head, [a], 10)
    a.agent.apply(request, late)
    run(world, head, [a], 10)
    assert len(world.executions) == 1


def test_a_late_reply_renews_nothing(world: World) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 1)
    head.add(job(1, 500))
    run(world, head, [a], 3)
    assert head.head is not None and a.agent is not None
    request = a.agent.request()
    reply = head.head.exchange(request)
    heard = world.now
    world.now += 30
    a.agent.request()  # never heard
    a.agent.apply(request, reply)
    run(world, head, [], TERMS.lease_s)
    a.work()
    assert world.executions[0].ended is not None
    assert world.executions[0].ended <= heard + TERMS.fence_after_s + TERMS.grace_s


def test_a_cancelled_job_is_ended_on_its_node_and_one_that_never_came_there_at_once(world: World) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 1)
    first, second = head.add(job(1, 100)), head.add(job(2, 100))
    run(world, head, [a], 3)
    with Store(head.queue.database) as store:
        for job_id in (first, second):
            job_table.cancel(store, job_id, world.now)
    run(world, head, [a], 3)
    assert states(head) == {JobState.CANCELLED: 2}
    assert [each.job for each in world.executions] == [job(1, 100)]
    head.add(job(3))
    assert head.head is not None and a.agent is not None
    lost = head.head.exchange(a.agent.request())
    assert len(lost.grants) == 1
    with Store(head.queue.database) as store:
        job_table.cancel(store, 3, world.now)
    reply = talk(head, a)
    assert reply is not None and reply.grants == ()
    assert states(head) == {JobState.CANCELLED: 3}


def test_a_job_waits_for_the_node_that_has_its_directory(world: World, tmp_path: Path) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 1)
    job_id = head.add(job(1), cwd=str(tmp_path / "shared").encode())
    run(world, head, [a], 5)
    assert states(head) == {JobState.QUEUED: 1}
    assert head.head is not None
    (tmp_path / "shared").mkdir()
    run(world, head, [a], 60)
    with Store(head.queue.database) as store:
        assert job_table.get(store, job_id).state is JobState.SUCCEEDED


def test_reserved_jobs_go_to_the_node_that_is_free_first(world: World) -> None:
    head, a, b = HeadBox(world), NodeBox(world, "a", 1), NodeBox(world, "b", 1)
    head.add(job(1, 1000))
    head.add(job(2, 10))
    run(world, head, [a], 3)  # the second one waits there
    with Store(head.queue.database) as store:
        assert len(lease_table.open_leases(store)) == 2
    run(world, head, [a, b], 20)
    assert [each.node for each in world.executions] == ["a", "b"]
    with Store(head.queue.database) as store:
        ends = [row.outcome and row.outcome.cause for row in attempt_table.attempts(store, 2)]
        assert ends == ["given_back", ""]
        assert job_table.get(store, 2).losses == 0


def test_jobs_do_not_take_turns_in_the_reserve_of_a_node_while_another_is_slow_to_answer(world: World) -> None:
    head, a, b = HeadBox(world), NodeBox(world, "a", 1), NodeBox(world, "b", 1)
    head.add(job(0, 1))
    run(world, head, [a, b], 5)  # both know the directory
    for n in range(1, 5):
        head.add(job(n, 20))
    for _ in range(20):  # a has a free GPU and says nothing
        talk(head, b)
        b.work()
        world.now += 0.2
    with Store(head.queue.database) as store:
        assert max(len(attempt_table.attempts(store, n)) for n in range(2, 6)) <= 2
    run(world, head, [a, b], 100)
    assert states(head) == {JobState.SUCCEEDED: 5}


def test_a_job_that_begins_while_it_is_asked_back_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 1)
    head.add(job(1, 5))
    talk(head, a)
    talk(head, a)
    assert head.head is not None and a.agent is not None
    request = a.agent.request()
    reply = head.head.exchange(request)
    looked = a.agent._is_to_end
    answers = iter([True])
    monkeypatch.setattr(a.agent, "_is_to_end", lambda job_id, back: next(answers, None) or looked(job_id, back=back))
    a.work()  # between the look and the change
    a.agent.apply(request, reply._replace(back=frozenset(held.token for held in request.held)))
    monkeypatch.undo()
    run(world, head, [a], 20)
    assert states(head) == {JobState.SUCCEEDED: 1}


def test_a_more_urgent_job_takes_the_place_of_a_reserved_one(world: World) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 1)
    for n in range(3):
        head.add(job(n, 20))
    run(world, head, [a], 3)
    head.add("urgent/20/0", prio=5)
    run(world, head, [a], 100)
    assert [each.job for each in world.executions][:2] == [job(0, 20), "urgent/20/0"]
    assert states(head) == {JobState.SUCCEEDED: 4}


def test_node_and_node_tag_and_pack_and_spread_are_heeded(world: World) -> None:
    head, a, b = HeadBox(world), NodeBox(world, "a", 4), NodeBox(world, "b", 4)
    b.tags = frozenset({"big"})
    b.stop()
    b.start()
    run(world, head, [a, b], 2)
    head.add(job(1), node="b")
    head.add(job(2), node_tag="big")
    head.add(job(3), node="a")
    head.add(job(4), node="c")
    run(world, head, [a, b], 5)
    assert {each.job: each.node for each in world.executions} == {job(1): "b", job(2): "b", job(3): "a"}
    for word, node in (("spread", "a"), ("pack", "b")):
        head.add(f"{word}/3/0", over_nodes=word)  # b has fewer free GPUs
        run(world, head, [a, b], 2)
        assert world.executions[-1].node == node
    run(world, head, [a, b], 30)
    assert states(head) == {JobState.SUCCEEDED: 5, JobState.QUEUED: 1}


def test_limits_and_dependencies_hold_over_all_nodes(world: World) -> None:
    head = HeadBox(world, max_gpus=3, tag_max_gpus="t=1")
    nodes = [NodeBox(world, "a", 4), NodeBox(world, "b", 4)]
    for n in range(4):
        head.add(job(n, 20), tags=("t",))
    for n in range(4, 10):
        head.add(job(n, 20))
    for _ in range(120):
        step(world, head, nodes)
        running = [each for node in nodes for each in node.running]
        assert len(running) <= 3
        assert sum(each.job in [job(n, 20) for n in range(4)] for each in running) <= 1
    assert states(head) == {JobState.SUCCEEDED: 10}


def test_a_node_with_a_full_disk_gets_nothing_and_says_why(world: World) -> None:
    head, a, b = HeadBox(world), NodeBox(world, "a", 1), NodeBox(world, "b", 1)
    a.closed = b.closed = "the disk is full"
    head.add(job(1))
    run(world, head, [a, b], 5)
    assert head.head is not None
    assert head.head.view().reasons == {1: "a, b: the disk is full"}
    b.closed = ""
    run(world, head, [a, b], 20)
    assert [each.node for each in world.executions] == ["b"]


def test_a_job_that_a_node_cannot_take_goes_to_another_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    head, a, b = HeadBox(world), NodeBox(world, "a", 2), NodeBox(world, "b", 1)
    run(world, head, [a, b], 2)
    assert head.head is not None and a.agent is not None
    with monkeypatch.context() as full:
        full.setattr(a.agent, "_change", _refuse)
        head.add(job(1))  # a has more free GPUs
        run(world, head, [a, b], 5)
        assert [each.node for each in world.executions] == ["b"]
        head.add(job(2), node="a")
        run(world, head, [a, b], 3)
        assert head.head.view().reasons == {2: "b: the job wants node=a; a: it cannot take jobs: the disk is full"}
    run(world, head, [a, b], 40)
    assert states(head) == {JobState.SUCCEEDED: 2}
    with Store(head.queue.database) as store:
        assert job_table.get(store, 1).losses == 0


def test_what_runs_goes_on_while_the_disk_of_the_head_is_full(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 1)
    head.add(job(1, 200))
    run(world, head, [a], 3)
    with monkeypatch.context() as full:
        full.setattr("gpusched.cluster.lease_book.LeaseBook.book", _refuse)
        run(world, head, [a], 3 * TERMS.lease_s + 50)
        assert states(head) == {JobState.RUNNING: 1}
    run(world, head, [a], 5)
    assert states(head) == {JobState.SUCCEEDED: 1}
    assert len(world.executions) == 1


def test_a_job_that_must_end_ends_though_the_disk_of_the_head_is_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, a, b = HeadBox(world), NodeBox(world, "a", 1), NodeBox(world, "b", 1)
    head.add(job(1, 45))
    talk(head, a)
    talk(head, a)
    run(world, head, [b], TERMS.lease_s + 5)
    assert head.head is not None and a.agent is not None
    monkeypatch.setattr(head.head._book, "book", _refuse)
    reply = head.head.exchange(a.agent.request())
    assert len(reply.stale) == 1 and not reply.done


def _refuse(*_: object, **__: object) -> None:
    raise DiskFull("the disk is full")


def test_a_node_that_leaves_gives_back_what_waits_and_is_forgotten(world: World) -> None:
    head, a, b = HeadBox(world), NodeBox(world, "a", 1), NodeBox(world, "b", 1)
    head.add(job(1, 10))
    head.add(job(2, 10))
    run(world, head, [a], 3)
    a.leaves = True
    run(world, head, [a, b], 30)
    assert [(each.job, each.node) for each in world.executions] == [(job(1, 10), "a"), (job(2, 10), "b")]
    assert states(head) == {JobState.SUCCEEDED: 2}
    assert head.head is not None and list(head.head.nodes) == ["b"]


def test_times_of_a_node_whose_clock_is_wrong_are_corrected(world: World) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 1, skew_s=-600)
    job_id = head.add(job(1, 10))
    began = world.now
    run(world, head, [a], 30)
    with Store(head.queue.database) as store:
        (row,) = attempt_table.attempts(store, job_id)
    assert began <= row.started_at <= began + 3
    assert row.ended_at is not None and 9 <= row.ended_at - row.started_at <= 12


def test_the_grace_time_of_a_node_is_that_of_its_cluster(world: World) -> None:
    a = NodeBox(world, "a", 1)
    with pytest.raises(GpuschedError, match="grace: is that of the cluster"):
        set_settings(a.queue, ["max-gpus=1", "grace=10m"])
    assert set_settings(a.queue, ["max-gpus=1"]).notes[0] == "max-gpus=1"
    with Store(a.queue.database) as store:
        assert json.loads(meta_table.read(store, "set") or "") == {"max_gpus": 1}


def test_another_box_of_the_same_name_and_another_version_are_refused(world: World, tmp_path: Path) -> None:
    head, a = HeadBox(world), NodeBox(world, "a", 1)
    talk(head, a)
    other = NodeBox(World(tmp_path / "other"), "a", 1)
    reply = talk(head, other)
    assert reply is not None and "another box has joined as a" in reply.refused
    assert head.head is not None and a.agent is not None
    old = head.head.exchange(a.agent.request()._replace(version="0.1"))
    assert "install the same on both" in old.refused
    patient = head.head.exchange(a.agent.request()._replace(terms=TERMS._replace(lease_s=900)))
    assert "join with --lease 60 --grace 5 --margin 5" in patient.refused


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_nothing_is_lost_and_nothing_runs_twice_whatever_breaks(world: World, seed: int) -> None:
    storm(world, random.Random(seed))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 300))
def test_storms(world: World, seed: int) -> None:
    storm(world, random.Random(seed))


def storm(world: World, chance: random.Random) -> None:
    """Break messages, agents, boxes and the head at random for a while, then let all end in peace."""
    head = HeadBox(world)
    nodes = [NodeBox(world, "a", 2), NodeBox(world, "bb", 2), NodeBox(world, "ccc", 1, skew_s=600)]
    for n in range(20):
        head.add(job(n, chance.choice((1, 5, 30, 100)), chance.choice((0, 0, 0, 9))))
    cut_until = {node.name: 0.0 for node in nodes}
    late: list[tuple[NodeBox, Request, Reply]] = []
    end = world.now + 400
    while world.now < end:
        node = chance.choice(nodes)
        what = chance.random()
        if what < 0.01 and node.is_up:
            node.power_cut()
        elif what < 0.1 and not node.is_up:
            node.boot()
        elif what < 0.12:
            cut_until[node.name] = world.now + chance.choice((5, 40, 70, 200))
        elif what < 0.13:
            head.stop()
        elif what < 0.2 and head.head is None:
            head.start()
        elif what < 0.22 and node.is_up:
            node.stop()
            node.start()
        elif what < 0.25:
            node.leaves = not node.leaves  # it takes nothing for a while
        for each in nodes:
            if cut_until[each.name] <= world.now:
                exchange(head, each, late, chance)
            each.work()
        world.now += chance.choice((0.1, 1.0, 3.0))
        assert not world.overlaps()
    if head.head is None:
        head.start()
    for node in nodes:
        node.leaves = False
        if not node.is_up:
            node.boot()
    settle(world, head, nodes)
    assert not world.overlaps()
    check_ends(world, head)


def exchange(head: HeadBox, node: NodeBox, late: list[tuple[NodeBox, Request, Reply]], chance: random.Random) -> None:
    """Let an agent speak with the head, over a line that loses, doubles and delays what is said."""
    if head.head is None or node.agent is None:
        return
    request = node.agent.request()
    fate = chance.random()
    if fate < 0.1:
        late.append((node, request, Reply(-1)))  # it comes to the head much later
        return
    reply = head.head.exchange(request)
    if fate < 0.2:
        late.append((node, request, reply))  # the answer comes much later
        return
    if fate < 0.3:
        head.head.exchange(request)
    node.agent.apply(request, reply)
    if fate < 0.4 and late:
        other, request, reply = late.pop(chance.randrange(len(late)))
        reply = head.head.exchange(request) if reply.seq == -1 else reply
        if other.agent is not None:
            other.agent.apply(request, reply)


def check_ends(world: World, head: HeadBox) -> None:
    """Check that each job has ended, with the exit code of an execution that was to its end, and succeeded once."""
    with Store(head.queue.database) as store:
        for row in job_table.jobs(store):
            ends = [each.outcome for each in attempt_table.attempts(store, row.id)]
            assert row.state in (JobState.SUCCEEDED, JobState.FAILED), (row.name, row.state, ends)
            ran = [each for each in world.executions if each.job == row.name]
            exits = [end.exit_code for end in ends if end is not None and end.kind is OutcomeKind.EXITED]
            whole = [each.code for each in ran if each.ended == each.ends]
            assert sum(code == 0 for code in exits) == (row.state is JobState.SUCCEEDED)
            assert Counter(exits) <= Counter(whole), (row.name, exits, whole)
            if row.state is JobState.FAILED:
                assert row.name.endswith("/9") or row.losses > 3, (row.name, ends)
