"""Files that gpusched reads back, with anything in them: reading never raises, and what is read can be stored."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.common import processes
from gpusched.core.documents import parse_progress
from gpusched.core.jobs.outcome import describe
from gpusched.core.jobs.progress import ItemCount, groups, items_done
from gpusched.core.model import AttemptFact, JobState
from gpusched.core.plan.fairness import Rival, Sharing
from gpusched.dispatcher.attempts.open_attempt import AttemptUse, OpenAttempt, outcome_of
from gpusched.host.attempts import attempt_dir, reaper, strays
from gpusched.host.attempts.running_command import describe as reason
from gpusched.host.gpus.claims import Claims
from gpusched.host.queue import published
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.operations.look.status import read_attempt
from tests.support import build
from tests.support.sample import a_board

MARKER = (b"GPUSCHED_QUEUE=/nowhere/at/all",)
NUMBERS = ("pid", "start_ticks", "exit_code", "signal", "max_rss_kib", "started_at", "ended_at", "cpu_s")
FIELDS = (*NUMBERS, "socket", "boot_id", "session", "stopped", "error", "note", "leftovers", "queue_id", "record")
ODD_VALUES = st.one_of(
    st.sampled_from(
        ["", "-1", "0", "1", "whole", "nan", "inf", "1e999", "9" * 20, "9" * 500, "1_0", "²", "0x1", "1.5"]
    ),
    st.sampled_from([processes.boot_id(), "timed_out", "unkillable", "0 0", "-1 -1", f"{os.getpid()} 1", "a\0b"]),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=20),
)
LINES = st.dictionaries(st.sampled_from(FIELDS), ODD_VALUES).map(
    lambda fields: "".join(f"{key}={value}\n" for key, value in fields.items()).encode("utf-8", "surrogatepass")
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
LABELS = st.fixed_dictionaries({}, optional=dict.fromkeys(("pid", "queue", "since"), JSON)) | JSON
PROGRESS = st.fixed_dictionaries({}, optional=dict.fromkeys(("done", "total", "unit", "message", "ready"), JSON)) | JSON
MAX_TIME = 253402300800.0  # later times have no date
anything = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value inside a JSON document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*path, key)
        yield from _places(each, (*path, key))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- life files ------------------------------------------------------------------------------------


def _attempt(root: Path) -> OpenAttempt:
    directory = attempt_dir.directory(str(root), 1, 1)
    return OpenAttempt(build.job_row(), build.attempt_row(), (), directory, MARKER, 0.0, AttemptUse(0.0))


def _look(root: Path, data: bytes) -> OpenAttempt:
    """Return an attempt after a look at its life file, which holds `data`; whatever that is, it can be booked."""
    attempt = _attempt(root)
    os.close(attempt_dir.make(attempt.directory))
    Path(attempt_dir.life_path(attempt.directory)).write_bytes(data)
    attempt.life = reaper.look(attempt.directory, "q", MARKER, strays.load(attempt.directory, {}))
    status = read_attempt(QueueDir(str(root), str(root)), 1, 1)
    assert status.elapsed_s(0.0, 1.0) >= 0.0
    if attempt.has_ended:
        outcome = attempt.outcome = outcome_of(attempt, "", str(root), None)
        describe(outcome).encode()  # text without half pairs, which no database takes
        assert max(outcome.exit_code or 0, outcome.signal or 0) < 2**63
        assert 0.0 <= attempt.ended_at(0.0) < MAX_TIME
    handle = reaper.shepherd_handle(attempt.life.fields)
    assert handle is None
    assert not reaper.terminate(attempt.life.fields)
    int(attempt.life.fields.get("pid", 0))
    return attempt


@anything
@given(data=st.binary(max_size=300) | LINES)
def test_a_look_at_an_attempt_takes_any_life_file(tmp_path: Path, data: bytes) -> None:
    attempt = _look(tmp_path, data)
    is_empty = not data.strip(b"\0\n") or b"queue_id=" in data  # of another queue
    assert attempt.life.fact in (AttemptFact.EXITED, AttemptFact.LOST) or is_empty


@anything
@given(
    key=st.sampled_from(NUMBERS), value=st.sampled_from(["", "-1", "nan", "1e999", "9" * 20, "1_0", "²", "1.x", "x"])
)
def test_a_record_with_a_damaged_number_is_none(tmp_path: Path, key: str, value: str) -> None:
    good = {**dict.fromkeys(NUMBERS, "1"), "pid": "999999998"}
    data = "".join(f"{name}={text}\n" for name, text in {**good, key: value}.items())
    attempt = _look(tmp_path, (data + "record=whole").encode("utf-8", "surrogatepass"))
    assert attempt.life.fact is AttemptFact.LOST and key not in attempt.life.fields


def test_a_record_of_good_numbers_is_one(tmp_path: Path) -> None:
    data = b"pid=999999998\nstarted_at=1.5\nended_at=12345678901.25\nexit_code=0\ncpu_s=0.001\nrecord=whole"
    attempt = _look(tmp_path, data)
    assert attempt.life.fact is AttemptFact.EXITED and attempt.outcome is not None and attempt.outcome.ok
    assert attempt.ended_at(0.0) == 12345678901.25


@anything
@given(
    data=st.binary(max_size=100) | st.lists(ODD_VALUES).map(" ".join).map(lambda text: text.encode("utf-8", "ignore"))
)
def test_the_processes_that_were_seen_may_be_anything(tmp_path: Path, data: bytes) -> None:
    directory = attempt_dir.directory(str(tmp_path), 1, 1)
    os.close(attempt_dir.make(directory))
    Path(attempt_dir.beside(directory, attempt_dir.SEEN)).write_bytes(data)
    seen = strays.load(directory, {"boot_id": processes.boot_id()})
    assert strays.find({}, MARKER, seen) == []


def test_an_error_about_a_file_of_any_name_can_be_stored() -> None:
    for name in (b"/a\xff", "/a\udcff"):
        assert reason(OSError(errno.ENOENT, "No such file", name)) == "No such file: /a\ufffd"


# ---- claims, the board, progress -------------------------------------------------------------------


@anything
@given(data=st.binary(max_size=300) | LABELS.map(json.dumps).map(str.encode))
def test_a_label_may_hold_anything(tmp_path: Path, data: bytes) -> None:
    claims = Claims(str(tmp_path))
    with _locked(tmp_path / "GPU-1.lock"):
        (tmp_path / f"GPU-1.lock.by-{os.getuid()}").write_bytes(data)
        holder = claims.holder("GPU-1")
    assert holder is not None and holder.pid == os.getpid()
    assert isinstance(holder.queue, str) and (holder.since is None or abs(holder.since) < float("inf"))


@anything
@given(data=st.binary(max_size=300) | JSON.map(json.dumps).map(str.encode))
def test_a_board_of_anything_is_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "devices.json"
    path.write_bytes(data)
    assert published.read_board(QueueDir(str(tmp_path), str(tmp_path))) is None


def test_a_board_comes_back_with_who_waits(tmp_path: Path) -> None:
    rival = Rival(7, "bo", 2.5, ("GPU-0", "GPU-1"), held=1, left="GPU-1")
    made = replace(a_board(), sharing=Sharing((rival,), ("GPU-9",), 3.5, True))
    published.write(str(tmp_path / "devices.json"), made)
    assert published.read_board(QueueDir(str(tmp_path), str(tmp_path))) == made


@anything
@given(data=st.data())
def test_a_board_with_an_odd_field_is_none_or_can_be_shown(tmp_path: Path, data: st.DataObject) -> None:
    path = str(tmp_path / "devices.json")
    published.write(path, a_board())
    document = json.loads(Path(path).read_bytes())
    keys = data.draw(st.sampled_from(list(_places(document))))
    inner = document
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = data.draw(JSON)
    Path(path).write_text(json.dumps(document))
    published.read_board(QueueDir(str(tmp_path), str(tmp_path)))


@anything
@given(data=st.binary(max_size=300) | PROGRESS.map(json.dumps).map(str.encode), items=st.integers(1, 2**62))
def test_a_progress_file_may_hold_anything(tmp_path: Path, data: bytes, items: int) -> None:
    attempt = _attempt(tmp_path)
    os.close(attempt_dir.make(attempt.directory))
    (Path(attempt.directory) / attempt_dir.PROGRESS).write_bytes(data)
    attempt.read_progress()
    text = attempt.view().attempt.progress
    json.dumps(parse_progress(text), allow_nan=False).encode()
    view = replace(attempt.view(), job=build.job_row(items=items))
    (group,) = groups([ItemCount((), JobState.RUNNING, 1, items)], [view])
    assert 0.0 <= items_done(items, parse_progress(text)) <= items and 0.0 <= group.fraction <= 1.0
