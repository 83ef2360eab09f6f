"""The words and numbers that people see, the columns, and the estimate of what is left."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from gpusched.core.model import DeviceProcess, JobState, RunningView
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.board import BoardDevice, Pace
from gpusched.core.plan.snapshot import DeviceView, Resident
from gpusched.views import report, tables, words
from gpusched.views.words import time_left
from tests.support import build
from tests.support.sample import BO, EVIL, NOW, gpu, view
from tests.views.test_live import running_view

# ---- words and numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0:00"), (5.9, "0:05"), (754, "12:34"), (3723, "1:02:03"), (183845, "2d 03:04")],
)
def test_clock(seconds: float, text: str) -> None:
    assert words.clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "~5 s"), (43, "~45 s"), (100, "~2 min"), (5300, "~88 min"), (8000, "~2 h 10 min"), (3e5, "~3 days")],
)
def test_an_estimate_is_no_more_exact_than_it_is(seconds: float, text: str) -> None:
    assert words.about(seconds) == text


@settings(max_examples=40)
@given(st.text(max_size=40), st.integers(0, 30))
def test_fit_never_takes_more_cells(text: str, width: int) -> None:
    fitted = words.fit(text, width)
    assert len(fitted) <= max(1, width)
    if len(text) <= width:
        assert fitted == text


def test_a_command_is_one_masked_line() -> None:
    assert words.command_text(b"A_TOKEN=abc   x\t\x1b[2J\r\xff") == "A_TOKEN=*** x \\x1b[2J\\x0d\ufffd"
    assert words.command_text(b"cd a\n\n  b \\\n    --x\nc\n") == "cd a; b --x; c"


ESD = "/v/bin/python -m gpusched.commands.esd --model {} --output /results --device cuda"


@pytest.mark.parametrize(
    ("texts", "shortened"),
    [
        (
            [ESD.format("tiny/one"), ESD.format("tiny/two"), "merge"],
            ["…esd --model tiny/one …", "…esd --model tiny/two …", "merge"],
        ),
        (["python /home/ann/train.py 1", "python /home/ann/train.py 2"], ["…train.py 1", "…train.py 2"]),
        (["sh /home/ann/t.sh -a 1 --lr 1", "sh /home/ann/t.sh -a 1 --lr 2"], ["…t.sh … --lr 1", "…t.sh … --lr 2"]),
        (["/opt/tools/solve big.dat 1 --x", "/opt/tools/solve big.dat 2 --x"], ["…solve … 1 --x", "…solve … 2 --x"]),
        (
            ["python /home/ann/t.py -c 'lr = 1; go()'", "python /home/ann/t.py -c 'lr = 2; go()'"],
            ["…t.py -c 'lr = 1; go()'", "…t.py -c 'lr = 2; go()'"],  # what is quoted stays whole
        ),
        # not worth it, or nothing to compare with
        (["python a.py --lr 1", "python a.py --lr 2"], ["python a.py --lr 1", "python a.py --lr 2"]),
        ([ESD, "name"], [ESD, "name"]),
        (["a b c", "a b c"], ["a b c", "a b c"]),
        ([], []),
    ],
)
def test_what_all_rows_share_is_shortened(texts: list[str], shortened: list[str]) -> None:
    assert words.shorten(texts) == shortened


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from(("python", "-m", "/a/long/path/to.py", "--lr", "1", "2")), min_size=1)))
def test_commands_that_differ_still_differ_when_they_are_shortened(lists: list[list[str]]) -> None:
    texts = [" ".join(each) for each in lists]
    shortened = words.shorten(texts)
    assert len(set(shortened)) == len(set(texts))
    assert all(len(short) <= len(text) for short, text in zip(shortened, texts, strict=True))


@pytest.mark.parametrize(
    ("path", "cwd", "short"),
    [("/a/b/c", "/a", "b/c"), ("/a/b", "/a/b", "/a/b"), ("/ab/c", "/a", "/ab/c"), ("/a", "/", "/a")],
)
def test_a_path_is_as_one_would_type_it(path: str, cwd: str, short: str) -> None:
    assert words.short_path(path, cwd) == short


# ---- devices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "word", "detail", "tone"),
    [
        (view(0, DeviceState.FREE, "free"), "free", "", "good"),
        (view(0, DeviceState.CHECKING, "free at 3 of 10 checks", count=3), "checking 3/10", "", "wait"),
        (view(0, DeviceState.BUSY, "900 MiB in use by \x1bbo"), "busy", "900 MiB in use by \\x1bbo", "busy"),
        (view(0, DeviceState.RUNNING, "runs a job of this queue"), "ours", "", "ours"),
        (
            view(0, DeviceState.SETTLING, "waiting for the memory of our last job: 9 MiB"),
            "settling",
            "9 MiB",
            "wait",
        ),
        (view(0, DeviceState.LOST, "lost"), "lost", "", "bad"),
        (view(0, DeviceState.LOST, "no longer in the box"), "lost", "no longer in the box", "bad"),
        (view(0, DeviceState.SET_ASIDE, "not given back"), "set aside", "not given back", "bad"),
        (view(0, DeviceState.UNKNOWN, "not read yet"), "not read", "", "wait"),
        (view(0, DeviceState.FREE, refused="claimed by cy's gpusched"), "claimed", "by cy's gpusched", "busy"),
    ],
)
def test_the_state_of_a_device_in_words(item: DeviceView, word: str, detail: str, tone: str) -> None:
    shown = report.device_line(BoardDevice(gpu(0), item), 10)
    assert (shown.word, shown.detail, shown.tone) == (word, detail, tone)


def test_a_device_with_our_job_tells_the_job_and_what_is_wrong_besides() -> None:
    known = view(0, DeviceState.RUNNING, "900 MiB in use by bo's python (pid 51), threshold 500 MiB")
    shown = report.device_line(BoardDevice(gpu(0), replace(known, residents=(Resident(12, 0),))), 10, of_queue="q")
    assert (shown.word, shown.tone) == ("job 12 of q", "ours") and shown.detail.startswith("900 MiB")


def test_who_is_on_a_device() -> None:
    graphics = DeviceProcess(7, None, "G", "ann", "Xorg")
    assert report.process_texts((BO, EVIL, graphics)) == (
        "bo python (pid 51, 60988 MiB)",
        "ev\\x1b[31mil x\\x0ay (pid 52, 12 MiB)",
        "ann Xorg (pid 7, ? MiB, graphics)",
    )
    assert report.process_texts(None) == ("unknown processes (of a container, or just ended)",)


def test_a_mig_instance_is_told_by_its_uuid() -> None:
    assert report.device_label(build.device(2, uuid="MIG-1234567890", parent_uuid="GPU-1")) == "2 MIG-12345678"


# ---- jobs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progress", "fraction", "text"),
    [
        ({"done": 12, "total": 100, "unit": "layers", "message": "second pass"}, 0.12, "12/100 layers, second pass"),
        ({"done": 120, "total": 100}, 1.0, "120/100"),
        ({"done": 3}, None, "3"),
        ({"message": "\x1b[31mhi"}, None, "\\x1b[31mhi"),
        ({"ready": True}, None, "ready"),
        ({"done": 1, "total": 0}, None, "1/0"),
        ({"done": "many"}, None, ""),
        ([1], None, ""),
    ],
)
def test_progress_as_the_job_tells_it(progress: object, fraction: float | None, text: str) -> None:
    shown = report.running_line(running_view(1, progress=json.dumps(progress)), NOW)
    assert (shown.fraction, list(shown.texts)) == (fraction, [text] if text else [])


@pytest.mark.parametrize(
    ("message", "tail", "texts"),
    [
        ("epoch 2, loss 0.5", "epoch 2, loss 0.5", ["3/9, epoch 2, loss 0.5"]),
        ("epoch 2, loss 0.5", "[12:00:01] Epoch 2 loss=0.5 (12 s)", ["3/9", "[12:00:01] Epoch 2 loss=0.5 (12 s)"]),
        ("epoch 2", "3/9 epoch 2", ["3/9, epoch 2"]),
        ("", "3/9", ["3/9"]),
        ("epoch 2", "saved", ["3/9, epoch 2", "saved"]),
        ("step 12", "step 13", ["3/9, step 12"]),
        ("", "10%", ["3/9", "10%"]),
        ("epoch 2", "", ["3/9, epoch 2"]),
    ],
)
def test_what_progress_and_log_say_alike_is_shown_once(message: str, tail: str, texts: list[str]) -> None:
    view = running_view(1, progress=json.dumps({"done": 3, "total": 9, "message": message}))
    assert list(report.running_line(view, NOW, tail).texts) == texts


def test_marks_of_a_running_job() -> None:
    plain = running_view(1)
    assert report.running_line(plain, NOW).mark == ""
    assert report.running_line(replace(plain, stopping=True), NOW).mark == "stopping"
    asked = RunningView(replace(plain.job, cancel_requested_at=NOW), plain.attempt, "51 sleep, 52 te\x07e")
    assert report.running_line(asked, NOW).mark == "stopping, ended, but left sleep (pid 51), te\\x07e (pid 52)"


def test_states_without_jobs_are_named_if_they_matter() -> None:
    made = report.tally(dict.fromkeys(JobState, 0) | {JobState.CANCELLED: 1, JobState.SUCCEEDED: 2})
    assert (made.cancelled, made.total, made.ended) == (1, 3, 3)
    assert made.parts() == [("running", 0), ("queued", 0), ("succeeded", 2), ("failed", 0), ("cancelled", 1)]


# ---- the estimate ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "job_s", "running_s", "queued", "left"),
    [
        (0, 0.0, [50.0] * 3, 5, None),
        (4, 400.0, [], 0, None),
        (40, 400.0, [], 40, 100),  # four at once
        (2, 100.0, [50.0, 50.0], 6, 162.5),  # two at once: as long as the others, so a quarter more is guessed
        (2, 200.0, [0.0, 0.0], 2, 200),  # two at once, and no one has waited
        (9, 90.0, [30.0], 0, 25 / 12),  # it takes longer than the others: nobody knows how long
        (9, 9.0, [5000.0], 9, 9.25 / 1.09),  # one that an earlier dispatcher began
    ],
)
def test_the_estimate_of_the_time_left(
    jobs: int, job_s: float, running_s: list[float], queued: int, left: float | None
) -> None:
    found = time_left(Pace(jobs, job_s, since=900.0), 1000.0, running_s, queued)
    assert found == (None if left is None else pytest.approx(left))


# ---- columns and pages -----------------------------------------------------------------------------


def test_a_grid_is_aligned_and_leaves_out_empty_columns() -> None:
    rows: list[tables.Row] = [["1", "", ("ok", "green"), ["a", "b"]], ["10", "", "比較", "c"]]
    lines = [line.plain for line in tables.grid(["N", "EMPTY", "HOW", "WHAT"], rows, right="N")]
    assert lines == [" N  HOW   WHAT", " 1  ok    a", "          b", "10  比較  c"]
    assert tables.grid(["A"], []) == []


def test_a_page_that_is_piped_is_whole_and_plain() -> None:
    out = io.StringIO()
    long = "x" * 500
    tables.write(out, [tables.line(("red", "red"), long), *tables.grid(["A"], [[long]])])
    assert out.getvalue() == f"red{long}\nA\n{long}\n"


def on_terminal(width: int, lines: list[tables.Line]) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None, highlight=False)
    tables.write(out, lines, console=console)
    return out.getvalue().splitlines()


def test_on_a_terminal_columns_are_cut_and_prose_is_left_to_it() -> None:
    path = "  log   /a/very/long/path/that/fits/nowhere.log"
    lines = on_terminal(20, [*tables.grid(["A", "B"], [["x", "y" * 40]]), tables.line(path)])
    assert lines[1:] == ["x  " + "y" * 16 + "…", path]
    assert on_terminal(20, tables.labelled([["next", "the same command goes on"]])) == [
        "next  the same command goes on"
    ]


@settings(max_examples=40)
@given(
    st.lists(st.text(st.characters(exclude_categories=["C"]), max_size=8), max_size=5),
    st.integers(3, 20),
)
def test_a_cut_line_fits(parts: list[str], width: int) -> None:
    assert tables.cut(tables.line(*parts), width).cell_len <= width


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        ([(0.0, "a")], "──────────"),
        ([(0.001, "a")], "━─────────"),
        ([(0.999, "a")], "━━━━━━━━━─"),
        ([(1.0, "a")], "━━━━━━━━━━"),
        ([(0.3, "a"), (0.4, "b")], "━━━━━━━───"),
        ([(0.9, "a"), (0.9, "b")], "━━━━━━━━━━"),
    ],
)
def test_bars(shares: list[tuple[float, str]], text: str) -> None:
    assert tables.bar(shares, 10).plain == text
