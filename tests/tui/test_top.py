"""The screen of `gpusched top` with Textual's pilot: what it shows, and what its keys do."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from gpusched.cli import main as front
from gpusched.config.settings import Settings
from gpusched.core.model import MIB, JobRow, JobSpec, JobState, Requirements
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, job_table, meta_table, submission
from gpusched.operations import queues
from gpusched.operations.look.status import read_queue
from gpusched.tui import job_list
from gpusched.tui.changes import TopApp, run_top
from gpusched.tui.job_list import JobList
from gpusched.views.pages import queue_head
from tests.support.sample import NOW, Sample9
from tests.support.screen import play, screen, until, until_shown

pytestmark = pytest.mark.slow

UNREAD = re.compile(r" *[0-9]+ … *$")  # a row


def test_it_shows_what_status_says(dispatched: Sample9) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until_shown(app, pilot, "epoch 2, loss 0.5", "61000/81920 MiB", "1:40", "? Keys")
        lines = screen(app)
        text = "\n".join(lines)
        for line in queue_head(read_queue(dispatched.place)):
            assert line.plain in text
        assert any("61000/81920 MiB" in line and "50%" in line and "busy" in line for line in lines)
        assert any(line.split()[:4] == ["3", "running", "0", "1:40"] for line in lines)
        assert "hf_abcdef" not in text and "\x1b" not in text
        await pilot.press("v")
        await until_shown(app, pilot, "attempt 1  since 08:51:40")
        await pilot.press("v")
        await until_shown(app, pilot, "no samples yet")

    play(steps, dispatched.place, claims=dispatched.home / "claims")


def test_a_log_follows_until_somebody_scrolls_back(dispatched: Sample9) -> None:
    log = dispatched.log(3, 1, b"".join(b"step %d\n" % n for n in range(100)))

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until_shown(app, pilot, "step 99")
        log.write_bytes(log.read_bytes() + b"step 100\n")
        await until_shown(app, pilot, "step 100")
        await pilot.press("tab", "home")
        await until_shown(app, pilot, "step 0 ")
        log.write_bytes(log.read_bytes() + b"step 101\n")
        await until(
            app, pilot, lambda: app.view is not None and app.view.job is not None and "101" in app.view.job.log[-1]
        )
        await pilot.pause(0.1)
        assert not any("step 101" in line and "running" not in line for line in screen(app))
        await pilot.press("end")
        await until(app, pilot, lambda: any(line.startswith("step 101") for line in screen(app)))

    play(steps, dispatched.place, claims=dispatched.home / "claims")


def test_keys_change_what_their_verbs_change(dispatched: Sample9, rung: list[str]) -> None:
    def state(job_id: int) -> JobState:
        return job_table.get(dispatched.store, job_id).state

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        jobs = app.query_one(JobList)
        await until(app, pilot, lambda: jobs.chosen_id == 3)
        await pilot.press("down", "h")
        await until(app, pilot, lambda: state(5) is JobState.HELD)
        await until_shown(app, pilot, "job 5: held")
        assert jobs.chosen_id == 5  # wherever it is now
        await pilot.press("r")
        await until(app, pilot, lambda: state(5) is JobState.QUEUED)
        await pilot.press("plus")
        await until(app, pilot, lambda: job_table.get(dispatched.store, 5).prio == 1)
        await pilot.press("m", *"12g", "enter")
        await until(app, pilot, lambda: job_table.get(dispatched.store, 5).mem_bytes == 12 * 1024 * MIB)
        await pilot.press("m", *"nonsense", "enter")
        await until_shown(app, pilot, "'nonsense' is not")
        await pilot.press("g", "backspace", "2", "enter")
        await until_shown(app, pilot, "max-gpus=2")
        assert dispatched.place.path in rung

    play(steps, dispatched.place, claims=dispatched.home / "claims")


def test_what_ends_something_asks(dispatched: Sample9) -> None:
    def is_asked(job_id: int) -> bool:
        return job_table.get(dispatched.store, job_id).cancel_requested_at is not None

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(app, pilot, lambda: app.query_one(JobList).chosen_id == 3)
        for no in ("n", "escape", "q"):
            await pilot.press("c")
            await until_shown(app, pilot, "Cancel job 3")
            await pilot.press(no)
            await pilot.pause()
        assert not is_asked(3) and app.is_running
        await pilot.press("c", "y")
        await until(app, pilot, lambda: is_asked(3))
        await pilot.press("p", "n")
        assert not meta_table.is_paused(dispatched.store)
        await pilot.press("p", "y")
        await until(app, pilot, lambda: meta_table.is_paused(dispatched.store))
        await until_shown(app, pilot, "paused: nothing new starts")
        await pilot.press("end", "c")  # has ended: no question
        await until_shown(app, pilot, "job 1: has succeeded before")
        await pilot.press("p")  # no question
        await until(app, pilot, lambda: not meta_table.is_paused(dispatched.store))

    play(steps, dispatched.place, claims=dispatched.home / "claims")


@pytest.mark.parametrize(("opens", "ends"), [("question_mark", "jj"), ("c", "nn"), ("m", "\x1b\x1b"), ("c", "y\r")])
def test_keys_that_arrive_together_end_one_dialog(dispatched: Sample9, opens: str, ends: str) -> None:
    keys = {"\x1b": "escape", "\r": "enter"}

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(app, pilot, lambda: app.query_one(JobList).chosen_id == 3)
        await pilot.press(opens)
        await until(app, pilot, lambda: len(app.screen_stack) == 2)
        for key in ends:
            app.simulate_key(keys.get(key, key))
        await until(app, pilot, lambda: len(app.screen_stack) == 1)
        await pilot.pause()
        assert app.is_running and len(app.screen_stack) == 1

    play(steps, dispatched.place, claims=dispatched.home / "claims")


def test_without_its_library_it_says_how_to_get_it(
    dispatched: Sample9, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "textual" else name)
    assert front.run(["top"]) == 3
    assert capsys.readouterr().err.count("the extra top") == 1


def test_what_cannot_go_on_is_said_when_the_terminal_is_given_back(
    dispatched: Sample9, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(app: TopApp) -> None:
        monkeypatch.setattr(app.reader, "read", lambda focus: 1 / 0)
        asyncio.run(app.run_async(headless=True))

    monkeypatch.setattr(TopApp, "run", fail)
    with pytest.raises(ZeroDivisionError):
        run_top(lambda: [dispatched.place], Settings(claims_dir=str(dispatched.home / "claims")))


def test_several_are_marked_and_changed_together(dispatched: Sample9) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("slash", *"state=failed", "enter")
        jobs = app.query_one(JobList)
        await until(app, pilot, lambda: list(jobs.ids) == [4, 2])
        await pilot.press("home", "space", "space", "u")
        await until(app, pilot, lambda: not jobs.ids)
        states = [job_table.get(dispatched.store, job_id).state for job_id in (2, 4)]
        assert states == [JobState.QUEUED] * 2 and not jobs.marked
        await until_shown(app, pilot, "no job here")
        await pilot.press("escape")
        await until(app, pilot, lambda: len(jobs.ids) == 9)

    play(steps, dispatched.place, claims=dispatched.home / "claims")


@pytest.mark.parametrize("key", ["plus", "escape"])
def test_marks_go_with_the_change_that_they_were_for(dispatched: Sample9, key: str) -> None:
    def marked(app: TopApp) -> list[str]:
        return [line.split()[0] for line in screen(app) if line.lstrip().startswith("*")]

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until(app, pilot, lambda: len(app.query_one(JobList).ids) == 9)
        app.query_one(JobList).choose(0)
        await pilot.press("space", "space", "space")
        await until(app, pilot, lambda: len(marked(app)) == 3)
        await pilot.press(key)
        await until(app, pilot, lambda: not marked(app))

    play(steps, dispatched.place, claims=dispatched.home / "claims")


def test_filter_state_and_order(dispatched: Sample9) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        jobs = app.query_one(JobList)
        await pilot.press("s")
        await until(app, pilot, lambda: list(jobs.ids) == [5, 6, 7])
        assert app.query_one("#filter", Input).value == "state=queued"
        await pilot.press("escape", "o")
        await until(app, pilot, lambda: list(jobs.ids) == list(range(1, 10)))
        await pilot.press("i")
        await until(app, pilot, lambda: list(jobs.ids) == list(range(9, 0, -1)))
        await until_shown(app, pilot, "JOB▲")
        titles = screen(app)[app.query_one("#titles").region.y]
        await pilot.click("#titles", offset=(titles.index("TIME"), 0))
        await until(app, pilot, lambda: jobs.ids[0] == 4)
        await pilot.click(JobList, offset=(5, 2))
        assert jobs.chosen_id == jobs.ids[2]
        await until(app, pilot, lambda: app.view is not None and app.view.job is not None)
        await until(app, pilot, lambda: app.view.job.report.job.id == jobs.ids[2])  # type: ignore[union-attr]

    play(steps, dispatched.place, claims=dispatched.home / "claims")


def test_all_queues_and_one_that_is_broken(dispatched: Sample9) -> None:
    other, bad = Sample9(dispatched.home, "other"), QueueDir(f"{dispatched.home}/bad", f"{dispatched.home}/bad")
    os.mkdir(bad.path)
    Path(bad.database).write_bytes(b"nothing at all")

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until_shown(app, pilot, "other", "bad/queue.db")
        assert app.view is not None and app.view.path == dispatched.place.path
        await pilot.press("]")
        await until(app, pilot, lambda: app.view is not None and app.view.path == other.place.path)
        await until_shown(app, pilot, "no job here")

    try:
        play(steps, dispatched.place, other.place, bad, claims=dispatched.home / "claims")
    finally:
        other.close()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50), (300, 90), (30, 8)])
def test_every_size_has_room_for_what_matters(dispatched: Sample9, size: tuple[int, int]) -> None:
    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        await until_shown(app, pilot, "running", "? Keys", *(("job 3", "claimed", " queued ") if size[0] >= 80 else ()))
        lines = screen(app)
        assert len(lines) == size[1] and {len(line) for line in lines} == {size[0]}
        assert "? Keys" in lines[-1]
        if size[0] >= 80:
            assert sum(" queued " in line for line in lines) >= 3
            await pilot.press("enter")
            await pilot.press("enter")
        assert app.query_one("#job").display is (size[1] >= 30 or size[0] >= 160)

    play(steps, dispatched.place, size=size, claims=dispatched.home / "claims")


def test_ten_thousand_jobs_cost_little(dispatched: Sample9, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is in view is read; two seconds at rest, 3 % of a core, cost half of reading all jobs once here."""
    store, some, read = dispatched.store, job_table.some, []
    specs = [JobSpec(b"python train.py --seed %d" % n, b"%d" % n, n) for n in range(10_000)]
    submission.submit(store, specs, lambda _: Requirements(), NOW)
    began_s = time.process_time()
    assert len(list(job_table.jobs(store))) > 10_000
    floor_s = time.process_time() - began_s

    def count_some(store: Store, ids: Sequence[int]) -> list[JobRow]:
        read.append(len(ids))
        return some(store, ids)

    monkeypatch.setattr(job_table, "some", count_some)
    monkeypatch.setattr(queues, "now", lambda: NOW + time.monotonic())

    async def steps(app: TopApp, pilot: Pilot[None]) -> None:
        jobs = app.query_one(JobList)
        await until(app, pilot, lambda: len(jobs.ids) > 10_000)
        for key in ("end", "pageup", "home", "pagedown"):
            await pilot.press(key)
            await until(app, pilot, lambda: jobs.chosen is not None and not any(map(UNREAD.match, screen(app))))
        assert jobs.chosen_id == jobs.ids[jobs.size.height - 1] and jobs.scroll_offset.y == 0
        await pilot.press("pagedown")
        assert jobs.scroll_offset.y > 0 and jobs.show_vertical_scrollbar and jobs.virtual_size.height > 10_000
        await pilot.resize_terminal(90, 30)
        await until(app, pilot, lambda: app.size.width == 90 and jobs.virtual_size.height > 10_000)
        await pilot.resize_terminal(120, 40)
        await pilot.press("slash", *"seed 1234", "enter")
        await until(app, pilot, lambda: list(jobs.ids) == [1234, 1244])
        await pilot.press("escape")
        await until(app, pilot, lambda: len(jobs.ids) > 10_000)
        await asyncio.sleep(1)
        began_s = time.process_time()
        await asyncio.sleep(2)
        assert time.process_time() - began_s < floor_s / 2

    play(steps, dispatched.place, claims=dispatched.home / "claims")
    assert max(read) <= 2 * job_list.AHEAD + 40 + 1
