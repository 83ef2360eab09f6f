"""Waiting jobs that are edited: what changes, what stays, what is refused; and the verbs for it."""

from __future__ import annotations

import pytest

from gpusched.common.errors import GpuschedError
from gpusched.core.model import MIB, Attributes, DependencyKind, JobRow, JobSpec, JobState, Requirements
from gpusched.host.store import dependency_table, job_table, meta_table, submission
from gpusched.operations.change import requests
from gpusched.operations.change.edit import JobEdit, edit
from tests.support.command_line import Capture, call
from tests.support.sample import NOW, Sample9

pytestmark = pytest.mark.usefixtures("rung")
OF_A_LIST = "is of a list: what was edited holds until that list is started again, or saved"
NO_DISPATCHER = "no dispatcher works on this queue; to run what is queued: gpusched run commands.txt"


def row(sample: Sample9, job_id: int = 5) -> JobRow:
    return job_table.get(sample.store, job_id)


def shape(sample: Sample9, job_id: int, **needs: object) -> str:
    return Requirements(**needs).shape  # type: ignore[arg-type]


def test_every_attribute_can_be_edited(sample: Sample9, capsys: Capture) -> None:
    options = "--mem 3G --gpus 2 --time 5m --prio 4 --name it --tag a,b --retries 2 --gpu-model A100 --cpus 3 --ram 8G"
    before = row(sample)
    out = call(
        capsys, "edit", "5", *options.split(), "--alone", "yes", "--env", "A=1", "--items", "7", "--command", "echo hi"
    )
    assert out.splitlines() == [
        "job 5: edited: command, name=it, tag=a,b, gpus=2, mem=3G, gpu-model=A100, alone=yes, cpus=3, ram=8G, "
        "time=5m, prio=4, retries=2, items=7, env.A",
        f"job 5 {OF_A_LIST}",
        NO_DISPATCHER,
    ]
    now = row(sample)
    assert (now.gpus, now.mem_bytes, now.stated_mem_bytes, now.time_limit_s) == (2, 3072 * MIB, 3072 * MIB, 300.0)
    assert (now.prio, now.name, now.tags, now.retries, now.gpu_model) == (4, "it", ("a", "b"), 2, "A100")
    assert (now.cpus, now.ram_bytes, now.items, now.command) == (3, 8192 * MIB, 7, b"echo hi")
    assert now.env == ((b"A", b"1"),)
    wanted = Requirements(gpus=2, mem_bytes=3072 * MIB, gpu_model="A100", cpus=3, ram_bytes=8192 * MIB, alone=True)
    assert now.shape == wanted.shape != wanted._replace(alone=False).shape != before.shape
    assert now.alone and not before.alone
    assert (now.position, now.line, now.cwd, now.state) == (before.position, before.line, before.cwd, before.state)


def test_an_empty_value_takes_an_attribute_back(sample: Sample9, capsys: Capture) -> None:
    before = row(sample)
    call(capsys, "edit", "5", "--mem", "3G", "--time", "5m", "--tag", "a", "--begin", "+2h", "--name", "x")
    assert row(sample).begin_at == pytest.approx(NOW + 7200, abs=1e9)
    said = call(capsys, "edit", "x", "--mem", "", "--time", "", "--tag", "", "--begin", "", "--name", "")
    assert said.startswith("job 5: edited: begin=, name=, tag=, mem=, time=\n")
    now = row(sample)
    assert (now.mem_bytes, now.time_limit_s, now.tags, now.begin_at, now.name) == (0, None, (), 0.0, "")
    assert now.shape == before.shape


def test_a_job_without_gpus_has_no_budget(sample: Sample9) -> None:
    edit(sample.place, ["5"], JobEdit({"mem": 3072 * MIB}))
    edit(sample.place, ["5"], JobEdit({"gpus": 0}))
    assert (row(sample).mem_bytes, row(sample).shape) == (0, Requirements(gpus=0).shape)


def test_a_grown_budget_stays_unless_another_one_is_stated(sample: Sample9) -> None:
    sample.store.update("jobs", "id = ?", (5,), mem_bytes=4096 * MIB, stated_mem_bytes=3000 * MIB, above_bytes=9)
    edit(sample.place, ["5"], JobEdit({"prio": 1}))
    assert (row(sample).mem_bytes, row(sample).stated_mem_bytes, row(sample).above_bytes) == (
        4096 * MIB,
        3000 * MIB,
        9,
    )
    edit(sample.place, ["5"], JobEdit({"mem": 5120 * MIB}))
    assert (row(sample).mem_bytes, row(sample).above_bytes) == (5120 * MIB, 0)


def test_only_waiting_jobs_are_edited_and_all_are_reported(sample: Sample9, capsys: Capture) -> None:
    requests.hold(sample.place, ["6"])
    out = call(capsys, "prio", "1", "3-6", "8", "-3", code=1)
    assert out.splitlines()[:4] == [
        "job 1: has succeeded: only waiting jobs can be edited",
        "job 3: is running: only waiting jobs can be edited",
        "job 4: has failed: only waiting jobs can be edited",
        "jobs 5-6: edited: prio=-3",
    ]
    assert "job 8: is cancelled: only waiting jobs can be edited" in out
    assert [row(sample, n).prio for n in (1, 3, 5, 6)] == [0, 0, -3, -3]
    assert row(sample, 6).state is JobState.HELD


def test_a_list_that_is_submitted_again_has_the_last_word(sample: Sample9) -> None:
    edit(sample.place, ["5"], JobEdit({"prio": 9}, command="echo other"))
    text = b"python train.py --lr 0.001"
    spec = JobSpec(text, text, 6, attributes=Attributes(prio=2))
    submission.submit(sample.store, [spec], lambda _: Requirements(prio=2), NOW, complete=False)
    assert (row(sample).prio, row(sample).command) == (2, text)


@pytest.mark.parametrize(
    ("jobs", "changes", "says"),
    [
        (["5"], JobEdit(), "nothing is to be changed"),
        ([], JobEdit({"prio": 1}), "no job is named"),
        (["5-6"], JobEdit({"name": "x"}), "--name: is for a single job"),
        (["5"], JobEdit(command="CUDA_VISIBLE_DEVICES=1 python x.py"), "--command"),
        (["5"], JobEdit(command="[gpus=2] python x.py"), "--command: is to be one command without attributes"),
        (["5"], JobEdit(command=""), "the command is empty"),
        (["5"], JobEdit({"after": ("nobody",)}), "job 5: there is no job or tag 'nobody' to wait for"),
    ],
)
def test_what_cannot_be_right_changes_nothing(jobs: list[str], changes: JobEdit, says: str, sample: Sample9) -> None:
    before = [row(sample, n) for n in range(1, 10)]
    with pytest.raises(GpuschedError) as caught:
        edit(sample.place, jobs, changes)
    assert says in str(caught.value)
    assert [row(sample, n) for n in range(1, 10)] == before


# ---- what it waits for -----------------------------------------------------------------------------


def waits(sample: Sample9, job_id: int) -> list[tuple[str, int]]:
    return [(kind, job.id) for kind, job in dependency_table.upstream(sample.store, job_id)]


def test_dependencies_are_edited_by_their_kind(sample: Sample9, capsys: Capture) -> None:
    call(capsys, "edit", "5", "--after", "6,7", "--after-ended", "3")
    assert waits(sample, 5) == [("after", 6), ("after", 7), ("after-ended", 3)] and row(sample).blocked
    call(capsys, "edit", "5", "--after", "1")
    assert waits(sample, 5) == [("after", 1), ("after-ended", 3)]
    call(capsys, "edit", "5", "--after-ended", "")
    assert waits(sample, 5) == [("after", 1)] and not row(sample).blocked


def test_a_circle_is_refused(sample: Sample9) -> None:
    edit(sample.place, ["5"], JobEdit({"after": ("6",)}))
    with pytest.raises(GpuschedError, match="jobs wait for each other in a circle"):
        edit(sample.place, ["6"], JobEdit({"after": ("5",)}))
    assert waits(sample, 6) == []


def test_a_job_that_was_held_for_what_it_waits_for_is_freed(sample: Sample9) -> None:
    meta_table.write(sample.store, "on_dep_fail", "hold")
    edit(sample.place, ["5"], JobEdit({DependencyKind.SUCCEEDED.value: ("4",)}))
    assert (row(sample).state, row(sample).cause) == (JobState.HELD, "dependency")
    edit(sample.place, ["5"], JobEdit({DependencyKind.SUCCEEDED.value: None}))
    assert row(sample).state is JobState.QUEUED


# ---- hold --all ------------------------------------------------------------------------------------


def test_all_waiting_jobs_are_held_and_released(sample: Sample9, capsys: Capture) -> None:
    assert call(capsys, "hold", "--all") == "jobs 5-7: held\n"
    assert job_table.ids(sample.store, [JobState.HELD]) == [5, 6, 7]
    assert call(capsys, "release", "--all").startswith("jobs 5-7: released\n")
    assert call(capsys, "hold", "--all", "5", code=2) == ""
