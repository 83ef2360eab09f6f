"""What a screen shows: the values of status, devices and explain; read anew only where something has changed."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpusched.config.settings import Settings
from gpusched.core.jobs.job_filter import JobFilter, parse_filter
from gpusched.core.model import MIB
from gpusched.core.samples import GpuStretch, Stretch
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.samples import SampleFile
from gpusched.host.store import job_table
from gpusched.operations.box.report import read_boards
from gpusched.operations.look import overview, status
from gpusched.operations.look.explain import explain
from gpusched.operations.look.overview import Focus, OverviewReader
from gpusched.operations.look.status import read_queue
from gpusched.operations.queues import OpenQueue
from gpusched.views.values import QueueReport
from tests.support.sample import NOW, Sample9, a_board, gpu


def reader(sample: Sample9) -> OverviewReader:
    return OverviewReader(lambda: [sample.place], Settings(claims_dir=str(sample.home / "claims")))


def test_it_shows_what_status_devices_and_explain_do(dispatched: Sample9) -> None:
    with reader(dispatched) as opened:
        view = opened.read(Focus(job=2))
    assert view.queue == read_queue(dispatched.place)
    assert list(view.queues.values()) == [view.queue.summary] and view.path == dispatched.place.path
    assert view.box == read_boards([(a_board(), "")], Settings(claims_dir=str(dispatched.home / "claims")))
    assert [(line.label, line.word, line.memory) for line in view.devices[:3]] == [
        (line.label, line.word, line.memory) for line in view.queue.devices[:3]
    ]
    assert view.job is not None and view.job.report == explain(dispatched.place, "2")


def test_a_gpu_shows_the_job_that_has_started_since_its_dispatcher_looked(dispatched: Sample9) -> None:
    with reader(dispatched) as opened:
        before = opened.read()
        dispatched.start(5, 0, gpus=(3,))
        after = opened.read()
    assert "job 5" not in [line.word for line in before.devices]
    assert after.devices[3].word == "job 5"
    assert after.queue is not None and after.queue.devices[3].word == "job 5"


def test_jobs_come_in_the_order_in_which_they_run(dispatched: Sample9) -> None:
    with reader(dispatched) as opened:
        view = opened.read()
        assert view.jobs == [3, 5, 6, 7, 4, 9, 8, 2, 1]
        lines = {line.job_id: line for line in opened.read_jobs(view, view.jobs)}
    assert lines[3].how == "epoch 2, loss 0.5" and lines[3].state == "running" and "hf_" not in lines[3].text
    assert lines[5].how.startswith("waits for a GPU") and lines[6].how == "behind job 5"
    assert lines[4].how.startswith("exit 1, out of GPU memory") and lines[4].attempts == "2"
    assert lines[9].how == "its line was removed"


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ("train", [3, 5, 7, 4, 2]),
        ("train 0.1", [2]),
        ("state=fail", [4, 2]),
        ("state=f state=r", [3, 4, 2]),
        ("state=nonsense", []),
        ("tag=none", []),
        ("BATCH", [4]),
    ],
)
def test_a_filter_lets_few_pass(sample: Sample9, words: str, ids: list[int]) -> None:
    assert job_table.select(sample.store, parse_filter(words), NOW) == ids


def test_orders(sample: Sample9) -> None:
    def ids(order: str, *, is_reversed: bool = False) -> list[int]:
        return job_table.select(sample.store, JobFilter(order=order, is_reversed=is_reversed), NOW)

    assert ids("id", is_reversed=True) == list(range(9, 0, -1))
    assert ids("time")[0] == 4 and set(ids("state")[:2]) == {8, 9}
    assert ids("started")[:2] == [1, 2] and ids("command")[0] == 3
    assert all(len(ids(order)) == 9 for order in ("prio", "tags"))


def test_what_has_not_changed_is_not_read_again(dispatched: Sample9, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[QueueReport] = []

    def report_queue(queue: OpenQueue) -> QueueReport:
        reports.append(status.report_queue(queue))
        return reports[-1]

    monkeypatch.setattr(overview, "report_queue", report_queue)
    monkeypatch.setattr(overview, "PACE", 0)
    with reader(dispatched) as opened:
        for _ in range(5):
            opened.read()
        assert len(reports) == 1
        job_table.cancel(dispatched.store, 5, NOW)
        view = opened.read()
        assert len(reports) == 2 and view.queue is not None and view.queue.summary.counts.cancelled == 2
        dispatched.publish(replace(a_board(), at=NOW))
        assert opened.read().queue is not None and len(reports) == 3
        monkeypatch.setattr(overview, "PACE", 1e9)
        job_table.hold(dispatched.store, 6)
        opened._watched[dispatched.place.path].full_s = time.monotonic() + 100
        opened.read()
        assert len(reports) == 3
        opened.hurry()
        assert opened.read().queue is not None and len(reports) == 4


def test_whoever_looks_at_one_queue_keeps_no_other_from_being_read(
    dispatched: Sample9, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Sample9(tmp_path, "other")
    other.fill()
    monkeypatch.setattr(overview, "PACE", 1e4)
    chosen = [dispatched.place, other.place]
    with OverviewReader(lambda: chosen, Settings(claims_dir=str(tmp_path / "claims"))) as opened:
        opened.read(Focus(dispatched.place.path))
        opened.read(Focus(other.place.path))
        job_table.cancel(other.store, 5, NOW)
        opened.read(Focus(dispatched.place.path))
        view = opened.read(Focus(other.place.path))
    other.close()
    assert view.queue is not None and view.queue.summary.counts.cancelled == 2


def test_a_gpu_has_its_last_minutes(dispatched: Sample9) -> None:
    uuid, samples = gpu(0).uuid, SampleFile(dispatched.place.samples)
    for at, use in ((NOW - 2000, 0.1), (NOW - 60, 0.5)):
        own = GpuStretch(0, 1000.0, 250.0, 250.0, use, 10.0, 10.0, jobs={"3": [10.0, 240.0]})
        samples.append(Stretch(at - 10, at, 10.0, gpus={uuid: own}))
    with reader(dispatched) as opened:
        view = opened.read(Focus(job=3))
        assert [(pulse.memory, pulse.use) for pulse in view.pulses[uuid]] == [(0.25, 0.5), (8012 / 81920, 0.93)]
        assert view.job is not None
        assert [(point.at, point.mib, point.use) for point in view.job.curve] == [
            (NOW - 2000, 240.0, 0.1),
            (NOW - 60, 240.0, 0.5),
        ]
        assert view.job.log == ["epoch 2, loss 0.5"]
        again = a_board()
        newer = replace(again.devices[0].view.availability.sample, at=NOW + 1, utilisation=0.2)  # type: ignore[type-var]
        known = replace(again.devices[0].view.availability, sample=newer)
        item = replace(again.devices[0], view=replace(again.devices[0].view, availability=known))
        dispatched.publish(replace(again, at=NOW + 1, devices=(item, *again.devices[1:])))
        assert opened.read().pulses[uuid][-1].use == 0.2


def test_a_queue_that_is_removed_or_damaged_hides_no_other(
    dispatched: Sample9, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Sample9(tmp_path, "other")
    bad = queue_dirs.locate(str(tmp_path / "gpusched-runs" / "bad"))
    os.makedirs(bad.path)
    Path(bad.database).write_bytes(b"nothing")
    monkeypatch.setattr(overview, "QUEUES_S", 0.0)
    chosen = [dispatched.place, other.place, bad]
    with OverviewReader(lambda: chosen, Settings(claims_dir=str(tmp_path / "claims"))) as opened:
        view = opened.read(Focus(queue=other.place.path))
        assert set(view.queues) == {dispatched.place.path, other.place.path} and view.path == other.place.path
        assert len(view.broken) == 1 and "bad" in view.broken[0]
        other.close()
        for path in Path(other.place.path).glob("queue.db*"):
            path.unlink()
        view = opened.read(Focus(queue=other.place.path))
        assert set(view.queues) == {dispatched.place.path} and view.path == dispatched.place.path
        assert any("removed" in text for text in view.broken)


def test_without_gpus_it_says_so(sample: Sample9) -> None:
    settings = Settings(claims_dir=str(sample.home / "claims"), simulate=str(sample.home / "nowhere/none"))
    with OverviewReader(lambda: [sample.place], settings) as opened:
        view = opened.read()
    assert "no simulation" in view.no_gpus and not view.devices
    assert view.queue is not None and view.queue.summary.pid is None


def test_simulated_gpus_are_read_where_nobody_dispatches(sample: Sample9) -> None:
    settings = Settings(claims_dir=str(sample.home / "claims"), simulate="2")
    with OverviewReader(lambda: [sample.place], settings) as opened:
        view = opened.read()
    assert [line.word for line in view.devices] == ["free now", "free now"] and not view.no_gpus
    assert view.devices[0].item.view.total_bytes == 81920 * MIB
    assert view.queue is not None and view.queue.summary.counts.succeeded == 1


def test_a_report_is_of_one_moment(dispatched: Sample9, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs end and start while it is read: its numbers and its tables are those of one state."""
    running = status.read_running

    def read_while_others_write(queue: OpenQueue) -> object:
        views = running(queue)
        with dispatched.store.transaction():
            dispatched.store.execute("UPDATE jobs SET state = 'queued' WHERE state = 'running'")
        return views

    monkeypatch.setattr(status, "read_running", read_while_others_write)
    report = read_queue(dispatched.place)
    assert len(report.running) == report.summary.counts.running == 1
    assert 3 not in {job.id for job in report.waiting}
