"""`gpusched usage` and `gpusched history`: what was used, by what, and what has ended."""

from __future__ import annotations

import json

import pytest

from gpusched.api import Queue
from gpusched.cli import main as front
from gpusched.common import libraries
from gpusched.common.errors import GpuschedError
from gpusched.core.model import DeviceUse, JobSpec, Requirements
from gpusched.host.queue import queue_dirs
from gpusched.host.store import submission
from gpusched.host.store.attempt_table import devices_text
from gpusched.operations.look import frame as frame_module
from gpusched.operations.look.frame import COLUMNS
from tests.support.command_line import Capture, call
from tests.support.sample import EXIT_3, NOW, OK, Sample9, gpu


def rows(page: str) -> dict[str, list[str]]:
    """The cells of a table by the first one."""
    return {line.split("  ")[0]: line.split("  ", 1)[1].split() for line in page.splitlines()}


def test_usage_by_device_counts_each_attempt_with_its_time(dispatched: Sample9, capsys: Capture) -> None:
    found = json.loads(call(capsys, "usage", "--by", "device", "--json"))
    by_device = {row["device"][:5]: row for row in found["usage"]}
    assert set(by_device) == {"GPU 0", "GPU 2"}
    # GPU 0: jobs 1 (60 s), 2 (5 s) and 3, which runs since 100 s; GPU 2: 2 (6 s), 4 (60 s and 80 s) and 7 (75 s)
    assert by_device["GPU 0"]["gpu_hours"] == pytest.approx((60 + 5 + 100) / 3600)
    assert by_device["GPU 2"]["gpu_hours"] == pytest.approx((6 + 60 + 80 + 75) / 3600)
    assert [by_device["GPU 2"][name] for name in ("jobs", "attempts", "failed_attempts")] == [3, 4, 4]
    assert by_device["GPU 0"]["energy_j"] == found["total"]["energy_j"] == 7200
    assert (found["by"], found["total"]["jobs"], found["total"]["attempts"]) == ("device", 5, 7)


def test_an_attempt_that_is_not_seen_running_any_more_counts_no_time(sample: Sample9, capsys: Capture) -> None:
    found = json.loads(call(capsys, "usage", "--by", "device", "--json"))["usage"]
    assert found[0]["gpu_hours"] == pytest.approx((60 + 5) / 3600)


def test_usage_by_tag_counts_a_job_under_each_and_once_in_all(dispatched: Sample9, capsys: Capture) -> None:
    needs = Requirements(tags=("a", "b"))
    submission.submit(dispatched.store, [JobSpec(b"x", b"x", 1)], lambda _: needs, NOW, append=True)
    number = dispatched.start(10, 0)
    uses = [DeviceUse(gpu(n).uuid, n) for n in (0, 1)]
    dispatched.store.execute("UPDATE attempts SET devices = ? WHERE job_id = 10", (devices_text(uses),))
    assert number == 1
    found = rows(call(capsys, "usage"))
    assert found["a"] == found["b"] == ["1", "1", "0", "1.00", "2.00"]
    assert found["all"][:3] == ["6", "8", "5"]


def test_usage_by_day_splits_what_ran_over_midnight(sample: Sample9, capsys: Capture) -> None:
    sample.store.execute("UPDATE attempts SET started_at = ended_at - 86400 WHERE job_id = 1")
    found = json.loads(call(capsys, "usage", "--by", "day", "--json"))["usage"]
    assert [row["day"] for row in found] == ["2025-10-08", "2025-10-09"]
    began_s = 8 * 3600 + 53 * 60 + 20 - 3600 + 70  # on the day before
    assert found[0]["gpu_hours"] == pytest.approx((86400 - began_s) / 3600)


def test_usage_since_a_moment_counts_what_came_after_it(dispatched: Sample9, capsys: Capture) -> None:
    """Of job 3, which runs, the last minute; of job 7, which ended 5 s ago, the time before; of the others nothing."""
    found = json.loads(call(capsys, "usage", "--since", "1m", "--json"))["total"]
    assert (found["jobs"], found["attempts"]) == (2, 2)
    assert found["gpu_hours"] == pytest.approx((60 + 55) / 3600)
    assert json.loads(call(capsys, "usage", "--since", "yesterday", "--json"))["total"]["attempts"] == 7


def test_interactive_command_is_used_time_and_no_failure(dispatched: Sample9, capsys: Capture) -> None:
    before = json.loads(call(capsys, "usage", "--json"))["total"]
    dispatched.store.execute("UPDATE attempts SET log = '' WHERE job_id = 2 AND outcome IS NOT NULL")
    after = json.loads(call(capsys, "usage", "--json"))["total"]
    assert before["failed_attempts"] > after.pop("failed_attempts")
    del before["failed_attempts"]
    assert before == after


def test_usage_of_all_queues(sample: Sample9, capsys: Capture) -> None:
    other = Sample9(sample.home, "sweep")
    submission.submit(other.store, [JobSpec(b"x", b"x", 1)], lambda _: Requirements(), NOW - 3600)
    other.attempt(1, OK, 0, 1800, gpus=(0,))
    other.close()
    queue_dirs.remember(other.place)
    found = rows(call(capsys, "usage", "--all"))
    assert set(found) == {"QUEUE", "commands", "sweep", "all"}
    assert found["sweep"][-1] == "0.50"


def test_history_shows_what_has_ended_lately(sample: Sample9, capsys: Capture) -> None:
    page = call(capsys, "history", "--since", "1h")
    lines = page.splitlines()[1:]
    assert [line.split()[:3] for line in lines] == [
        ["1", "2", "succeeded"],
        ["2", "3", "failed"],
        ["8", "9", "cancelled"],
        ["9", "10", "cancelled"],
        ["4", "5", "failed"],
    ]
    ends = ["07:54:30", "07:54:46", "07:55:00", "07:56:40", "07:57:20"]
    assert [end in line for end, line in zip(ends, lines, strict=True)] == [True] * 5
    assert "its line was removed" in page and "out of GPU memory" in page
    sample.attempt(5, EXIT_3, 3590, 3595)
    sample.attempt(5, EXIT_3, 3596, 3599)
    assert call(capsys, "history", "--since", "08:53").splitlines()[1].split()[:1] == ["5"]
    assert call(capsys, "history", "--since", "2025-10-09T08:53:20") == "no job has ended since 08:53:20\n"


def test_history_as_json_and_in_part(sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpusched.operations.look.usage.SHOWN_JOBS", 2)
    page = call(capsys, "history")
    assert "… and 3 earlier ones (-v lists them)" in page and len(page.splitlines()) == 4
    found = json.loads(call(capsys, "history", "--json"))
    assert (found["schema_version"], found["ended"], [job["id"] for job in found["jobs"]]) == (1, 5, [1, 2, 8, 9, 4])
    found = json.loads(call(capsys, "history", "--json", "--failed"))
    assert (found["ended"], [job["id"] for job in found["jobs"]]) == (2, [2, 4])
    assert [line.split()[0] for line in call(capsys, "history", "--failed").splitlines()[1:]] == ["2", "4"]
    assert call(capsys, "history", "--failed", "--since", "08:53") == "no job has failed since 08:53:00\n"
    assert front.run(["history", "--since", "soon"]) == 2
    assert "'soon' is no time" in capsys.readouterr().err


def test_a_parquet_file_has_a_row_for_each_attempt(sample: Sample9, capsys: Capture) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert call(capsys, "usage", "--parquet", "attempts.parquet") == "attempts.parquet: 11 rows\n"
    table = parquet.read_table(sample.home / "attempts.parquet")
    rows = table.to_pylist()
    assert [(row["id"], row["attempt"]) for row in rows] == [
        *[(1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (5, None), (6, None), (7, 1), (8, None), (9, None)]
    ]
    assert (rows[0]["queue"], rows[0]["energy_j"], rows[0]["outcome"], rows[0]["devices"]) == (
        *("commands", 7200.0, "exited"),
        gpu(0).uuid,
    )
    assert rows[1]["exit_code"] == 3 and rows[1]["started_at"].timestamp() == NOW - 3600 + 70
    assert "hf_" not in rows[3]["command"] and str(table.schema.field("signal").type) == "int64"
    assert sorted(path.name for path in sample.home.glob("attempts*")) == ["attempts.parquet"]


def test_parquet_names_its_extra_and_a_wrong_place(
    sample: Sample9, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    assert front.run(["usage", "--parquet", "no/such/place.parquet"]) == 3
    assert "no/such/place.parquet" in capsys.readouterr().err
    monkeypatch.setattr(libraries, "missing", list)
    assert front.run(["usage", "--parquet", "x.parquet"]) == 3
    assert "pyarrow (the extra parquet)" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*pyarrow.*")
def test_a_queue_is_a_data_frame(sample: Sample9, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    queue = Queue(str(sample.place.path))
    frame = queue.frame()
    assert len(frame) == 11 and list(frame.columns) == list(COLUMNS)
    assert frame[frame.state == "failed"].groupby("id").attempt.max().to_dict() == {2: 2, 4: 2}
    assert frame.started_at.min().timestamp() == NOW - 3600 + 10
    monkeypatch.setattr(frame_module, "missing", list)
    with pytest.raises(GpuschedError, match="pandas or polars"):
        queue.frame()
