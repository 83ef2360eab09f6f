"""The live view: what is drawn at which size, how seldom, and how it bears a terminal that is slow or gone."""

from __future__ import annotations

import errno
import io
import os
import pty
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TextIO, cast

import pytest
from rich.cells import cell_len

from gpusched.core.jobs.progress import ItemGroup
from gpusched.core.model import DeviceUse, Event, JobState, RunningView
from gpusched.core.plan.board import BoardDevice, Frame, Pace
from gpusched.dispatcher import Observer
from gpusched.views.lines import PatientWriter, event_lines
from gpusched.views.report import group_line, running_line
from gpusched.views.tables import cut
from gpusched.views.terminal.layout import Picture, lay_out
from gpusched.views.terminal.live import LiveView
from tests.support import build
from tests.support.golden import golden
from tests.support.sample import NAME, NOW, a_board, gpu, view

COUNTS = dict.fromkeys(JobState, 0) | {
    JobState.QUEUED: 6,
    JobState.RUNNING: 2,
    JobState.SUCCEEDED: 5,
    JobState.FAILED: 1,
    JobState.CANCELLED: 2,
}


def running_view(
    job_id: int, *, gpus: tuple[int, ...] = (0,), command: bytes = b"python train.py", progress: str = ""
) -> RunningView:
    job = build.job_row(
        job_id,
        command=command,
        line=job_id + 1,
        state=JobState.RUNNING,
        gpus=len(gpus),
        attempts=1,
        submitted_at=NOW - 900,
        first_started_at=NOW - 100,
    )
    uses = tuple(DeviceUse(gpu(n).uuid, n, NAME) for n in gpus)
    log = f"logs/{job_id:04d}.1-python.log"
    return RunningView(job, build.attempt_row(job_id, started_at=NOW - 100, log=log, devices=uses, progress=progress))


RUNNING = (
    running_view(
        3,
        command=b"HF_TOKEN=hf_abcdefghijklmnopqrstuvwx python train.py --lr 0.01 --out /data/ann/runs/lr-0.01",
        progress='{"done": 12, "total": 100, "unit": "layers", "message": "second pass"}',
    ),
    replace(running_view(12, gpus=(2, 3), command=b"torchrun --nproc 2 big.py"), leftovers="51 tee"),
)
REASON = "job 5 waits for a GPU (GPU 1 is used by bo (59.6 GiB, python), GPU 2: free at 3 of 10 checks)"
FRAME = Frame(
    at=NOW,
    queue="/work/gpusched-runs/commands",
    started_at=NOW - 754,
    board=a_board(),
    counts=COUNTS,
    running=RUNNING,
    reason=REASON,
    pace=Pace(4, 600.0, NOW - 754),
    groups=(),
    closing="",
)

GROUPS = (
    ItemGroup(("shards",), 8, 3, 1000, 450.0),
    ItemGroup(("ä",), 2, 0, 10, 0.0),
    ItemGroup(("c",), 2, 2, 10, 10.0),
    ItemGroup(("d",), 2, 2, 10, 10.0),
    ItemGroup(("e",), 2, 2, 10, 10.0),
)


def drawn(
    frame: Frame,
    width: int,
    height: int,
    *,
    tail: str = "epoch 2, loss 0.5",
) -> list[str]:
    running = [running_line(each, frame.at, tail) for each in frame.running]
    groups = [group_line(group, 2.5) for group in frame.groups]
    picture = Picture("commands", frame, running, groups)
    lines = [cut(line, width).plain for line in lay_out(picture, width, height)]
    assert len(lines) <= max(1, height - 1)
    assert all(cell_len(line) <= width for line in lines)
    return lines


# ---- what is drawn ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (80, 14), (60, 10), (30, 6), (200, 50)])
def test_the_view_at_a_size(width: int, height: int) -> None:
    golden(f"live-{width}x{height}", "\n".join(drawn(FRAME, width, height)) + "\n")


def test_jobs_that_do_items_are_shown_as_one() -> None:
    lines = drawn(replace(FRAME, groups=GROUPS), 100, 30)
    at = next(n for n, text in enumerate(lines) if text.startswith("shards "))
    assert lines[at].startswith("shards  ━") and lines[at].endswith(
        "  45%  450/1000 items  2.5/s  ~4 min left  3 of 8 jobs done"
    )
    assert lines[at + 1].startswith("ä       ─") and lines[at + 2].startswith("c       ")
    assert lines[at + 3] == "… and 2 more groups"
    few = drawn(replace(FRAME, groups=GROUPS), 60, 12)
    assert any(text.startswith("shards  ━━━━──────  45%  450/1000 items") for text in few)
    assert not any(text.startswith("c  ") for text in few)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 20, 79, 133])
@pytest.mark.parametrize("height", [1, 2, 3, 4, 7, 11, 24])
def test_no_size_is_too_small(width: int, height: int) -> None:
    grouped = replace(FRAME, groups=GROUPS)
    for frame in (FRAME, grouped, replace(FRAME, running=()), replace(FRAME, board=a_board(devices=()))):
        drawn(frame, width, height)


def test_many_gpus_and_jobs_are_summed_up() -> None:
    devices = tuple(BoardDevice(gpu(n), view(n, a_board().devices[n % 4].view.availability.state)) for n in range(64))
    running = tuple(running_view(n) for n in range(1, 41))
    text = "\n".join(drawn(replace(FRAME, board=a_board(devices=devices), running=running), 80, 24))
    assert len(re.findall(r"\d [━─]{8}", text)) == 35 and re.search(r"and \d+ more rows", text)
    assert re.search(r"and \d+ more running jobs", text)
    text = "\n".join(drawn(replace(FRAME, board=a_board(devices=devices)), 80, 24))
    assert len(re.findall(r"\d [━─]{8}", text)) == 64


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"closing": "stopping (Ctrl-C)"}, "stopping (Ctrl-C): nothing new starts"),
        ({"board": a_board(gpus_closed="NVML does not answer")}, "nothing new starts on a GPU: NVML does not answer"),
        ({"reason": "sa\x1bys \x07 it"}, "next: sa\\x1bys \\x07 it"),
    ],
)
def test_what_is_waited_for(change: dict[str, object], says: str) -> None:
    assert says in drawn(replace(FRAME, **change), 100, 24)  # type: ignore[arg-type]


# ---- drawing ---------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A terminal in memory, which can go away."""

    encoding = "utf-8"
    gone: OSError | None = None
    writes = 0

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise io.UnsupportedOperation

    def write(self, text: str) -> int:
        if self.gone is not None:
            raise self.gone
        self.writes += 1
        return super().write(text)

    def take(self) -> str:
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


def screen(text: str, width: int = 80) -> list[str]:
    """What a terminal shows: cursor movements obeyed, colours dropped."""
    lines: list[str] = [""]
    row = column = 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if part == "\n":
            row, column = row + 1, 0
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b["):
            number = int(re.sub(r"\D", "", part) or "1")
            if part[-1] == "A":
                row -= number
                assert row >= 0
            elif part == "\x1b[2K":
                lines[row] = ""
            continue
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
        lines += [""] * (row + 1 - len(lines))
    return lines


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Terminal()


@pytest.fixture
def live(terminal: Terminal, tmp_path: Path) -> LiveView:
    observer: Observer = LiveView(terminal, str(tmp_path), lambda attempt: "20%|##")
    return cast(LiveView, observer)


def test_a_frame_is_drawn_over_the_last_one(live: LiveView, terminal: Terminal) -> None:
    live.frame(FRAME)
    live.frame(replace(FRAME, at=NOW + 1))
    lines = screen(terminal.take())
    assert sum("MEMORY  USE" in line for line in lines) == 1
    assert any("1:41" in line for line in lines) and not any("1:40" in line for line in lines)
    assert any("20%|##" in line for line in lines)
    live.close()


def test_it_asks_for_few_frames(live: LiveView) -> None:
    assert live.refresh_s is not None and 0.25 <= live.refresh_s <= 0.5


def test_nothing_is_drawn_when_nothing_has_changed(live: LiveView, terminal: Terminal) -> None:
    live.frame(FRAME)
    before = terminal.writes
    live.frame(FRAME)
    live.event(Event(NOW, "ended", "job 5 succeeded: exit 0, after 1.0 s", 5))
    live.event(Event(NOW, "started", "job 6 on GPU 0: true", 6))
    live.frame(FRAME)
    assert terminal.writes == before
    live.close()


def test_what_matters_scrolls_by_above(live: LiveView, terminal: Terminal) -> None:
    live.event(Event(NOW, "ended", "job 5 failed: exit 1, after 1.0 s", 5))
    live.event(Event(NOW, "warning", "two\nlines \x1b[2J", None))
    assert terminal.take() == ""  # only with a frame
    live.frame(FRAME)
    live.event(Event(NOW + 1, "queue", "the list was read: 2 new"))
    live.frame(replace(FRAME, at=NOW + 1))
    lines = screen(terminal.take())
    assert lines[:4] == [
        "08:53:20 job 5 failed: exit 1, after 1.0 s",
        "08:53:20 warning: two",
        "         lines \\x1b[2J",
        "08:53:21 the list was read: 2 new",
    ]
    assert lines[4].startswith("gpusched  test_") and any("job 3" in line for line in lines)
    live.close()


def test_at_the_end_the_view_makes_room_and_the_cursor_is_left_alone(live: LiveView, terminal: Terminal) -> None:
    live.frame(FRAME)
    live.event(Event(NOW, "queue", "the last word"))
    live.close()
    text = terminal.take()
    assert [line for line in screen(text) if line] == ["08:53:20 the last word"]
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")
    live.close()
    live.frame(FRAME)
    assert terminal.take() == ""


def test_the_cursor_stays_visible(live: LiveView, terminal: Terminal) -> None:
    live.frame(FRAME)
    text = terminal.take()
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l")


def test_events_without_any_frame_are_said_at_the_end(live: LiveView, terminal: Terminal) -> None:
    live.event(Event(NOW, "error", "no GPU"))
    live.close()
    assert screen(terminal.take())[0] == "08:53:20 error: no GPU"


@pytest.mark.parametrize("number", [errno.EIO, errno.EPIPE, errno.ENXIO])
def test_a_terminal_that_is_gone_stops_the_drawing_only(live: LiveView, terminal: Terminal, number: int) -> None:
    live.frame(FRAME)
    terminal.gone = OSError(number, "gone")
    if number == errno.EPIPE:
        terminal.gone = BrokenPipeError()
    live.frame(replace(FRAME, at=NOW + 1))
    live.event(Event(NOW, "error", "x"))
    live.frame(replace(FRAME, at=NOW + 2))
    live.close()


def test_detached_it_writes_nothing(live: LiveView, terminal: Terminal) -> None:
    live.frame(FRAME)
    terminal.take()
    live.detach()
    live.event(Event(NOW, "error", "x"))
    live.frame(replace(FRAME, at=NOW + 1))
    live.close()
    assert terminal.take() == ""


def test_no_colour_and_no_thread(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    threads = threading.active_count()
    live = LiveView(terminal, str(tmp_path), lambda attempt: "")
    live.frame(FRAME)
    assert threading.active_count() == threads
    live.close()
    assert not re.search(r"\x1b\[[\d;]*3[0-7][;m]", terminal.take())


# ---- a slow terminal -------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[int, TextIO]]:
    master, slave = pty.openpty()
    out = os.fdopen(slave, "w", encoding="utf-8")
    yield master, out
    os.close(master)
    try:
        out.close()
    except OSError:
        pass


def test_a_terminal_that_takes_nothing_makes_nobody_wait(pair: tuple[int, TextIO]) -> None:
    _, out = pair
    writer = PatientWriter(out)
    for _ in range(300):
        writer.write("x" * 1000)
        writer.flush()
    assert writer.behind


def test_what_was_kept_comes_when_the_terminal_reads_again(pair: tuple[int, TextIO]) -> None:
    master, out = pair
    writer = PatientWriter(out)
    writer.write("y" * 200_000)
    writer.flush()
    read = 0
    while read < 200_000:
        read += len(os.read(master, 65536))
        writer.flush()
    assert not writer.behind


def test_only_a_newline_begins_another_line_of_an_event() -> None:
    event = Event(NOW, "launched", "job 1: echo 'a\u2028b\x85c\x0bd'\nand more\n")
    assert [text for _, text in event_lines(event)] == [r"job 1: echo 'a\u2028b\x85c\x0bd'", "and more"]
