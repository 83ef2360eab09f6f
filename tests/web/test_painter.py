"""What viewers share: one reading in a frame, the timeline beside it, and nothing while nobody looks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from unittest.mock import AsyncMock, Mock
from urllib.parse import parse_qsl

import pytest
from starlette.types import Message

from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings
from gpusched.host.store import job_table
from gpusched.operations.look.overview import Focus, Overview, OverviewReader
from gpusched.operations.look.story import read_story
from gpusched.views.story.page import render_timeline
from gpusched.web import painter as module
from gpusched.web.page import PageDrawing
from gpusched.web.painter import Painter
from gpusched.web.query import PageQuery, parse_query
from gpusched.web.server import Site
from tests.support.box import wait_for
from tests.support.sample import NOW, Sample9


class Counted:
    """A painter of the sample, with the number of readers that it has opened, and what these have read."""

    def __init__(self, sample: Sample9) -> None:
        self.opened: list[OverviewReader] = []
        self.reads: list[Focus] = []
        counted = self

        class Reader(OverviewReader):
            def read(self, focus: Focus = Focus()) -> Overview:  # noqa: B008
                counted.reads.append(focus)
                return super().read(focus)

        def open_reader() -> OverviewReader:
            settings = Settings(claims_dir=str(sample.home / "claims"))
            self.opened.append(Reader(lambda: [sample.place], settings))
            return self.opened[-1]

        self.painter = Painter(open_reader)

    def draw(self, query: PageQuery = PageQuery()) -> PageDrawing:  # noqa: B008
        return asyncio.run(self.painter.draw(query))


@pytest.fixture
def counted(dispatched: Sample9) -> Iterator[Counted]:
    made = Counted(dispatched)
    with made.painter:
        yield made


def test_viewers_of_the_same_share_a_frame(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_S", 1e6)
    monkeypatch.setattr(module, "FRAME_S", 1e6)
    assert not counted.opened
    first = counted.draw()
    assert counted.draw() is first and counted.draw(PageQuery(job=3)) is not first
    assert len(counted.reads) == 2 and len(counted.opened) == 1
    monkeypatch.setattr(module, "LAST_S", 0.0)
    assert counted.draw() is not first and len(counted.reads) == 3


def test_after_a_while_without_viewers_all_is_read_anew(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAST_S", 0.0)
    counted.draw()
    monkeypatch.setattr(module, "STALE_S", 0.0)
    counted.draw()
    assert len(counted.opened) == 2


def test_frames_are_rarer_where_they_take_long(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    counted.draw()
    assert counted.painter.pause_s() == module.FRAME_S
    counted.draw(PageQuery(job=3))
    monkeypatch.setattr(module, "PACE", 1e9)
    assert counted.painter.pause_s() == module.LAST_S
    monkeypatch.setattr(module, "LAST_S", 1e9)
    assert counted.painter.pause_s() > 1e3


def test_the_timeline_is_that_of_the_report(counted: Counted, dispatched: Sample9) -> None:
    def timeline() -> str:
        counted.painter._drawn.clear()
        return counted.draw().parts["timeline"]

    assert "being read" in timeline()
    wait_for(lambda: "<svg" in timeline())
    assert timeline() == render_timeline(read_story(dispatched.place)).strip()


def test_a_queue_without_a_list_and_a_job_that_is_gone(counted: Counted, dispatched: Sample9) -> None:
    job_table.cancel(dispatched.store, 5, NOW)
    drawing = counted.draw(PageQuery(job=99, text="state=cancelled"))
    assert "not in this queue" in drawing.parts["job"] and set(drawing.rows) == {"j5", "j8", "j9"}
    assert "hf_abc" not in "".join(counted.draw(PageQuery(job=3)).parts.values())


@pytest.mark.parametrize(
    "query", [PageQuery(), PageQuery("/runs/a b&c", "tag=x é", "time", True, 7, 400), PageQuery(job=1)]
)
def test_a_link_means_the_same_again(query: PageQuery) -> None:
    assert parse_query(dict(parse_qsl(query.link()[1:]))) == query
    assert parse_query(dict(parse_qsl(query.link(job=None)[1:]))).job is None


@pytest.mark.parametrize("below", ["", "report"])
def test_a_queue_that_cannot_be_read_is_said(below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(query: PageQuery) -> PageDrawing:
        raise GpuschedError("queue.db is damaged")

    painter = Painter(Mock())  # nothing is opened
    monkeypatch.setattr(painter, "draw", fail)
    monkeypatch.setattr(painter, "report", fail)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": f"/word/{below}", "query_string": b"", "headers": []}
    asyncio.run(Site(painter, asyncio.Event()).application()(scope, AsyncMock(), send))
    assert sent[0]["status"] == 503 and sent[1]["body"] == b"queue.db is damaged\n"
