"""The screen of `gpusched top` with Textual's pilot: opened, looked at, and waited for. Asserts only that it comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from textual.pilot import Pilot

from gpusched.config.settings import Settings
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.operations.look.overview import OverviewReader
from gpusched.tui.changes import TopApp
from tests.support.box import PATIENCE_S

Steps = Callable[[TopApp, "Pilot[None]"], Awaitable[None]]


def screen(app: TopApp) -> list[str]:
    return [strip.text for strip in app.screen._compositor.render_strips()]


async def until(app: TopApp, pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Wait until this is so."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "\n".join(screen(app))
        await pilot.pause(0.02)


async def until_shown(app: TopApp, pilot: Pilot[None], *texts: str) -> None:
    """Wait until all of these are on the screen: its parts are drawn one after the other."""
    await until(app, pilot, lambda: all(text in "\n".join(screen(app)) for text in texts))


def play(steps: Steps, *known: QueueDir, size: tuple[int, int] = (120, 40), claims: Path) -> None:
    """Open the screen on these queues, and go through the steps once it shows something."""

    async def run() -> None:
        app = TopApp(OverviewReader(lambda: known, Settings(claims_dir=str(claims))))
        try:
            async with app.run_test(size=size, notifications=True) as pilot:
                await until(app, pilot, lambda: app.view is not None)
                await pilot.pause()
                await steps(app, pilot)
        finally:
            app.close()

    asyncio.run(run())
