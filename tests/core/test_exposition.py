"""The text for Prometheus: read by its own parser, with the names and the units of its conventions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from gpusched.core.exposition import QueueTotals, exposition
from gpusched.core.model import JobState
from tests.support.sample import NOW, a_board

TOTALS = QueueTotals(
    {state: n for n, state in enumerate(JobState)}, {"memory": 2.5, "held": 1}, {"exited": 7, "lost": 1}, 3600.5, 7e6
)
PATH = '/home/ann/a "b"\\c\nd'
BASE_UNITS = ("bytes", "seconds", "joules", "ratio")


def read(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return the values of each metric by their labels, without the queue."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith(".") and family.type in ("gauge", "counter")
        for sample in family.samples:
            assert sample.labels.pop("queue") == PATH
            assert sample.name.endswith("_total") == (family.type == "counter")
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_the_numbers_of_queue_and_gpus() -> None:
    found = read(exposition(PATH, a_board(), TOTALS, version="1.0", is_up=True))
    assert found["gpusched_build_info"] == {(("version", "1.0"),): 1}
    assert found["gpusched_dispatcher_up"] == {(): 1} and found["gpusched_poll_timestamp_seconds"] == {(): NOW - 1.4}
    assert found["gpusched_jobs"] == {(("state", state.value),): n for state, n in TOTALS.jobs.items()}
    assert found["gpusched_waiting_jobs"] == {(("reason", "held"),): 1, (("reason", "memory"),): 2.5}
    assert found["gpusched_attempts_total"] == {(("outcome", "exited"),): 7, (("outcome", "lost"),): 1}
    assert (found["gpusched_gpu_seconds_total"], found["gpusched_energy_joules_total"]) == ({(): 3600.5}, {(): 7e6})
    by_gpu = {dict(labels)["gpu"]: value for labels, value in found["gpusched_gpu_memory_used_bytes"].items()}
    assert by_gpu == {"0": 8012 << 20, "1": 61000 << 20, "2": 4 << 20, "3": 4 << 20}
    states = Counter(dict(labels)["state"] for labels, on in found["gpusched_gpu_state"].items() if on)
    assert states == {"running": 1, "busy": 1, "checking": 1, "free": 1}
    assert "gpusched_gpu_energy_joules_total" not in found  # these boards do not tell


def test_names_follow_the_conventions() -> None:
    for family in text_string_to_metric_families(exposition(PATH, a_board(), TOTALS, version="1.0", is_up=True)):
        assert family.name.startswith("gpusched_")
        for word in ("mib", "gib", "percent", "ms", "hours", "kwh"):
            assert word not in family.name.split("_")
        if any(unit in family.name.split("_") for unit in BASE_UNITS):
            assert family.name.endswith(BASE_UNITS)


def test_nobody_dispatches() -> None:
    found = read(exposition(PATH, a_board(), TOTALS, version="1.0", is_up=False))
    assert found["gpusched_dispatcher_up"] == {(): 0} and "gpusched_jobs" in found
    assert not any(name.startswith("gpusched_gpu_") and not name.endswith("seconds_total") for name in found)
    assert read(exposition(PATH, None, TOTALS, version="1.0", is_up=True))["gpusched_dispatcher_up"] == {(): 1}


def test_what_is_not_known_is_left_out_and_no_command_is_in_it() -> None:
    board = a_board()
    blind = replace(board.devices[0].view.availability, sample=None, foreign_bytes=None)
    devices = (replace(board.devices[0], view=replace(board.devices[0].view, availability=blind)),)
    text = exposition(PATH, replace(board, devices=devices), TOTALS, version="1.0", is_up=True)
    assert "gpu_memory_used_bytes" not in text and "gpu_memory_foreign_bytes" not in text and "python" not in text
