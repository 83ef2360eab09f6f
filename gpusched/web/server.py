"""The server of the page: what it answers, the stream of changes to each viewer, and its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings
from gpusched.operations.look.overview import OverviewReader
from gpusched.operations.queues import QueueDir
from gpusched.web.address import PageAddress
from gpusched.web.gate import Gate
from gpusched.web.page import POLICY, render
from gpusched.web.painter import Painter
from gpusched.web.query import PageQuery, parse_query

MOST_VIEWERS, MOST_CONNECTIONS = 16, 64
REQUEST_BYTES = 16 << 10
LEAVE_S = 2


class Site:
    """The answers of the server. `closing` ends the streams."""

    def __init__(self, painter: Painter, closing: asyncio.Event) -> None:
        self._painter, self._closing = painter, closing
        self._viewers = 0

    def application(self) -> Starlette:
        pages = {"": self.show_page, "events": self.stream_events, "report": self.show_report}
        routes = [Route(f"/{{token}}/{name}", show) for name, show in pages.items()]
        return Starlette(routes=routes, exception_handlers=dict.fromkeys((GpuschedError, OSError), _say_trouble))

    async def show_page(self, request: Request) -> Response:
        query = parse_query(request.query_params)
        drawing = await self._painter.draw(query)
        return HTMLResponse(render(drawing, query), headers={"Content-Security-Policy": POLICY})

    async def show_report(self, request: Request) -> Response:
        report = await self._painter.report(parse_query(request.query_params))
        # its own policy stands in it
        headers = {"Content-Security-Policy": "frame-ancestors 'none'"}
        return HTMLResponse(report or "there is no queue yet", headers=headers)

    async def stream_events(self, request: Request) -> Response:
        if self._viewers >= MOST_VIEWERS:
            return PlainTextResponse("too many pages are open\n", 503)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(self._events(parse_query(request.query_params)), media_type="text/event-stream")

    async def _events(self, query: PageQuery) -> AsyncIterator[str]:
        """Yield what has changed since the last frame, until the viewer or the server leaves."""
        self._viewers += 1
        sent: dict[str, str] = {}
        rows: Sequence[str] | None = None
        try:
            while not self._closing.is_set():
                try:
                    drawing = await self._painter.draw(query)
                except (GpuschedError, OSError) as error:
                    yield f"event: trouble\ndata: {json.dumps(str(error))}\n\n"
                else:
                    parts = {name: html for name, html in drawing.parts.items() if sent.get(name) != html}
                    new_rows = drawing.rows if drawing.rows != rows else None
                    changes = {"title": drawing.title, "parts": parts, "rows": new_rows}
                    sent, rows = dict(drawing.parts), drawing.rows
                    yield f"data: {json.dumps(changes)}\n\n"
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), self._painter.pause_s())
        finally:
            self._viewers -= 1


def _say_trouble(_: Request, error: Exception) -> Response:
    """Return the answer where a queue cannot be read."""
    return PlainTextResponse(f"{error}\n", 503)


class _Server(uvicorn.Server):
    """A server whose streams end when it is asked to leave."""

    def __init__(self, config: uvicorn.Config, closing: asyncio.Event) -> None:
        super().__init__(config)
        self._closing = closing

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._closing.set()


def serve(address: PageAddress, choose: Callable[[], Sequence[QueueDir]], settings: Settings) -> None:
    """Answer at this address until Ctrl-C."""
    with Painter(lambda: OverviewReader(choose, settings)) as painter, suppress(KeyboardInterrupt):
        closing = asyncio.Event()
        app = Gate(Site(painter, closing).application(), address.token)
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,  # the addresses have the token
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=LEAVE_S,
            h11_max_incomplete_event_size=REQUEST_BYTES,
        )
        _Server(config, closing).run(sockets=[address.listener])
