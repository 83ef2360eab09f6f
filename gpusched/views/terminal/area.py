"""Draw over a part of a terminal, below the text that scrolls. Knows nothing of the contents; starts no thread."""

from __future__ import annotations

import io
import os
import select
from collections.abc import Sequence
from typing import TextIO, cast

from rich.cells import cell_len
from rich.console import Console, Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from gpusched.views.tables import Line, is_unicode

PIECE = 1024  # characters that a terminal takes without blocking if it is ready


def can_be_drawn_over(out: TextIO) -> bool:
    """Return True if this is a terminal that can move its cursor."""
    return out.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class PatientWriter(io.TextIOBase):
    """A writer that never blocks: text for a terminal that was stopped (Ctrl-S) waits here."""

    def __init__(self, out: TextIO) -> None:
        self._target = out
        self._pending = ""
        self._poll: select.poll | None = None
        try:
            fd = out.fileno()
        except (OSError, ValueError):
            return  # a stream in memory
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._target.encoding or "ascii"

    @property
    def behind(self) -> bool:
        return bool(self._pending)

    def isatty(self) -> bool:
        return self._target.isatty()

    def fileno(self) -> int:
        return self._target.fileno()

    def write(self, text: str) -> int:
        self._pending += text
        return len(text)

    def flush(self) -> None:
        while self._pending and (self._poll is None or self._poll.poll(0)):
            piece, self._pending = self._pending[:PIECE], self._pending[PIECE:]
            try:
                self._target.write(piece)
                self._target.flush()
            except BaseException:
                self._pending = ""  # the terminal is gone
                raise

    def finish(self) -> None:
        """Write the rest, and wait for the reader if necessary."""
        self._poll = None
        self.flush()


class Area:
    """Draws pages of lines over each other. Raises OSError or ValueError if the terminal is gone."""

    def __init__(self, out: TextIO, *, width: int | None = None, height: int | None = None) -> None:
        self._out = PatientWriter(out)
        self._console = _Terminal(
            file=cast(TextIO, self._out), highlight=False, markup=False, emoji=False, width=width, height=height
        )
        self._live: Live | None = None
        self._lines: Sequence[Line] = ()
        self._drawn_size = (0, 0)
        self.unicode = is_unicode(self._console)

    @property
    def size(self) -> tuple[int, int]:
        return self._console.width, self._console.height

    def is_ready(self) -> bool:
        """Return True if the terminal has taken all text."""
        self._out.flush()
        return not self._out.behind

    def draw(self, lines: Sequence[Line], above: Sequence[Text] = ()) -> None:
        """Replace the last page by `lines`, and print `above` before them. Does nothing if nothing has changed."""
        size = self.size
        if not above and lines == self._lines and size == self._drawn_size:
            return
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
            self._console.show_cursor(True)  # so that the terminal stays usable if this program is killed
        elif size[0] < self._drawn_size[0]:
            self._make_room(size[0])
        self._live.update(Group(*(Text.assemble(*line.parts, no_wrap=True, overflow="crop") for line in lines)))
        with self._console:  # one write for both
            if above:
                self._console.print(Group(*above))
            self._live.refresh()
        self._lines, self._drawn_size = lines, size

    def _make_room(self, width: int) -> None:
        """Erase the further lines that a narrower terminal has made by wrapping the page."""
        more = sum(max(0, cell_len(line.plain) - 1) // width for line in self._lines)
        if more:
            steps = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * more
            self._console.control(Control(ControlType.CARRIAGE_RETURN, *steps))

    def close(self, above: Sequence[Text] = (), *, keep: bool = False) -> None:
        """Remove the area, or leave it as it is with `keep`; `above` is printed before."""
        if above:
            self._console.print(Group(*above))
        if self._live is not None:
            self._live.transient = not keep
            self._live.stop()
            self._live = None
        self._out.finish()


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Raise, since rich would end the process here, and a dispatcher must go on."""
        raise BrokenPipeError
