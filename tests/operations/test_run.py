"""Running jobs as a Python user does: devices, submission and dispatch, on simulated GPUs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpusched import api
from gpusched.common import simulation
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.config.layers import LoadedSettings, load
from gpusched.config.settings import Settings
from gpusched.core.model import JobState
from gpusched.dispatcher import Hooks
from gpusched.host.queue import queue_dirs as queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import job_table, request_table
from gpusched.lists.submit import STREAM, JobSource, SubmitOptions, Sweep, read
from gpusched.operations.box.devices import BoxDevices, check_devices, open_devices
from gpusched.operations.change.edit import JobEdit, edit
from gpusched.operations.run import list_queue
from gpusched.operations.run.check import check_list
from gpusched.operations.run.run import RunQueue, RunSession, run_jobs
from gpusched.operations.run.run import set_up_log as set_up_log
from tests.support.sample import stand_still

CLAIMS = "claims"


@pytest.fixture(autouse=True)
def _box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box with two simulated GPUs, and a list of two jobs in the working directory."""
    stand_still(monkeypatch, tmp_path)
    monkeypatch.setenv("GPUSCHED_CLAIMS_DIR", str(tmp_path / CLAIMS))
    (tmp_path / CLAIMS).mkdir(mode=0o1777)
    simulation.create(str(tmp_path / "simulation"), simulation.parse_spec("2"))
    monkeypatch.setenv(simulation.ENV_DIRECTORY, str(tmp_path / "simulation"))
    (tmp_path / "list.txt").write_text("true\nfalse\n")


def loaded(**settings: object) -> LoadedSettings:
    return load({"max_checks": 1, "poll_interval": "0.05", **settings})


# ---- devices ---------------------------------------------------------------------------------------


def is_open(devices: BoxDevices) -> bool:
    return devices.is_open


def test_devices_are_opened_at_first_need_and_closed_at_the_end() -> None:
    with open_devices(Settings()) as devices:
        assert not is_open(devices)
        assert len(devices.first.devices) == 2
        assert is_open(devices) and devices.first is devices.first
    assert not is_open(devices)
    with pytest.raises(KeyboardInterrupt), devices:
        assert devices.source.describe()
        raise KeyboardInterrupt
    assert not is_open(devices)


def test_a_box_without_gpus_serves_jobs_that_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(simulation.ENV_DIRECTORY)
    monkeypatch.setattr("gpusched.host.gpus.device_source.read_once", no_gpus)
    with open_devices(Settings()) as devices, pytest.raises(GpuschedError, match="no driver"):
        devices.first  # noqa: B018
    with open_devices(Settings(), 0) as devices:
        assert devices.first.devices == ()


def no_gpus(source: object) -> None:
    raise GpuschedError("no driver", exit_code=EXIT_CANNOT_WORK)


def test_a_run_inside_a_job_does_not_get_the_gpu_of_that_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_devices(Settings()) as opened:
        devices = opened.first.devices
    monkeypatch.setenv("GPUSCHED_JOB_ID", "7")
    monkeypatch.setenv("GPUSCHED_DEVICES", devices[1].uuid)
    with pytest.raises(GpuschedError, match="this is job 7 of another gpusched"):
        check_devices(Settings(), devices)
    assert check_devices(Settings(gpu_list="0"), devices).uuids == (devices[0].uuid,)
    assert check_devices(Settings(gpus_per_job=0), devices).uuids == ()


# ---- the queue of a list ---------------------------------------------------------------------------


def test_two_lists_of_one_name_get_queues_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = list_queue.make_queue_dir("list.txt", Settings())
    second = list_queue.make_queue_dir("other/list.txt", Settings())
    assert first.name == "list" and second.name.startswith("list-")
    assert list_queue.make_queue_dir("list.txt", Settings()) == first
    for find in (list_queue.make_queue_dir, list_queue.find_queue_dir):  # of a dry run
        with pytest.raises(GpuschedError, match=r"the queue of another list: .*\n  choose another name for -q"):
            find("other/list.txt", Settings(log_dir=first.path))
    assert {first.path, second.path} == {queue.path for queue in queue_dirs.list_queues()}


def test_a_stream_keeps_its_queue_for_as_long_as_its_process_lives() -> None:
    first = list_queue.find_queue_dir(STREAM, Settings())
    assert list_queue.find_queue_dir(STREAM, Settings()) == first and first.name.startswith("stdin-")


def test_a_start_that_states_less_keeps_the_limits_of_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    queue_dir = list_queue.make_queue_dir("list.txt", Settings())
    options = list_queue.submit_options(queue_dir, loaded(max_gpus=1))
    with RunQueue(queue_dir) as queue:
        queue.submit(read(b"true\n", options, "list.txt"), options)
    assert list_queue.submit_options(queue_dir, loaded()).settings.max_gpus is None
    monkeypatch.setattr(QueueDir, "dispatcher", lambda self: 4711)
    assert list_queue.submit_options(queue_dir, loaded()).settings.max_gpus == 1
    assert list_queue.submit_options(queue_dir, loaded(max_gpus=2)).settings.max_gpus == 2


def test_a_log_that_takes_no_line_is_no_word_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", True)
    logger = logging.getLogger("gpusched")
    before = list(logger.handlers)
    set_up_log(QueueDir(str(tmp_path), str(tmp_path)), "INFO")
    (handler,) = [each for each in logger.handlers if each not in before]
    assert isinstance(handler, logging.StreamHandler)
    try:
        with handler.stream, suppress(OSError), open("/dev/full", "w") as full:
            handler.setStream(full)
            logger.info("a line")
    finally:
        logger.removeHandler(handler)
    assert capfd.readouterr() == ("", "")


def test_a_setup_that_is_no_file_is_refused() -> None:
    with pytest.raises(GpuschedError, match="No such file"):
        list_queue.submit_options(list_queue.find_queue_dir("list.txt", Settings()), loaded(setup="nowhere.sh"))
    Path("setup.sh").write_bytes("export A=1\n".encode("utf-16"))
    with pytest.raises(GpuschedError, match="UTF-16"):
        list_queue.submit_options(list_queue.find_queue_dir("list.txt", Settings()), loaded(setup="setup.sh"))


# ---- the whole of a run ----------------------------------------------------------------------------


@contextmanager
def noted(notes: list[str], what: str) -> Iterator[None]:
    notes.append(f"before {what}")
    yield
    notes.append(f"after {what}")


def test_a_run_submits_within_prepare_and_ends_with_the_summary() -> None:
    given = loaded()
    options = list_queue.submit_options(list_queue.find_queue_dir("list.txt", given.settings), given)
    jobs = read(b"true\nfalse\n", options, "list.txt")
    notes: list[str] = []
    states: list[JobState] = []

    def prepare(queue: RunQueue) -> object:
        return noted(notes, f"{len(list(job_table.jobs(queue.store)))} jobs")

    session = RunSession(summarize=lambda queue, code: states.extend(job.state for job in job_table.jobs(queue.store)))
    with open_devices(options.settings) as devices:
        assert run_jobs("list.txt", jobs, options, devices, prepare=prepare, session=session) == 1  # type: ignore[arg-type]
    assert notes == ["before 0 jobs", "after 0 jobs"]
    assert states == [JobState.SUCCEEDED, JobState.FAILED]


def test_jobs_that_another_dispatcher_takes_end_with_75(monkeypatch: pytest.MonkeyPatch) -> None:
    given = loaded()
    queue_dir = list_queue.make_queue_dir("list.txt", given.settings)
    options = list_queue.submit_options(queue_dir, given)
    jobs = read(b"true\n", options, "list.txt")
    lock = queue_dir.take()
    said: list[str] = []

    def acknowledge() -> None:
        with RunQueue(queue_dir) as queue:
            while not (requests := request_table.open_requests(queue.store)):
                threading.Event().wait(0.01)
            with queue.store.transaction():
                request_table.acknowledge(queue.store, requests[0][0], 0.0)

    other = threading.Thread(target=acknowledge)
    other.start()
    with open_devices(options.settings) as devices:
        code = run_jobs("list.txt", jobs, options, devices, session=RunSession(notify=said.append))
        assert not devices.is_open
    other.join()
    assert lock is not None and code == 75
    hint = "`gpusched status list` shows it, `gpusched wait -q list` waits for its end"
    assert said[0].endswith(f"which has taken this list; leaving (75); {hint}")


def test_the_library_runs_dry_runs_and_refuses_as_the_verb_does(tmp_path: Path) -> None:
    found = api.dry_run("list.txt", max_gpus=1)
    assert found.reasons[1] == "starts on GPU 0" and found.counts is None
    assert not (tmp_path / "gpusched-runs").exists()
    assert api.run("list.txt", max_checks=1, poll_interval="0.05") == 1
    again = api.dry_run("list.txt", retry_failed=True)
    assert [change for _, change in again.jobs] == ["keep", "requeue"]
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(GpuschedError, match="holds no command"):
        api.run("empty.txt")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        api.nothing  # noqa: B018
    assert api.split_range(4, 2) == [(0, 2), (2, 4)]


def test_a_checked_list_says_why_it_would_be_refused() -> None:
    options = list_queue.submit_options(list_queue.find_queue_dir("list.txt", Settings()), loaded())
    assert check_list(JobSource("list.txt", b"true\n"), options).refusal == ""
    assert check_list(JobSource("list.txt", b"# \n"), options).refusal == "there is no command in it"
    wrong = check_list(JobSource("list.txt", b"[after=prep] true\n"), options)
    assert wrong.refusal == "a line cannot be right" and wrong.counts["error"] == 1
    assert [spec.command for spec in check_list(JobSource(Sweep("echo {n}", ("n=1,2",))), options).specs] == [
        b"echo 1",
        b"echo 2",
    ]


def test_a_job_that_is_edited_at_the_last_moment_runs_as_it_was_edited(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("echo old > ran\n")
    settings = loaded(gpus_per_job="0").settings
    options = SubmitOptions(settings, os.fsencode(tmp_path))
    steps: list[str] = []

    def step(name: str) -> None:
        if name == "prepared" and "prepared" not in steps:
            edit(queue.queue_dir, ["1"], JobEdit(command="echo new > ran"))
        steps.append(name)

    with open_devices(settings, 0) as devices, RunQueue.for_file("list.txt", settings) as queue:
        queue.submit(read(b"echo old > ran\n", options, "list.txt"), options)
        assert queue.dispatch(options, devices, hooks=Hooks(step=step)) == 0
    assert (tmp_path / "ran").read_text() == "new\n"
    assert steps.count("prepared") > 1
