"""A part of a terminal that is drawn over, below what scrolls by. Knows nothing of what it shows; starts no thread."""

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

PIECE = 1024  # characters that a terminal which is ready takes without making its writer wait


def can_be_drawn_over(out: TextIO) -> bool:
    """Whether this is a terminal that can move its cursor."""
    return out.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class PatientWriter(io.TextIOBase):
    """Text for a terminal, written while it takes some: one that was stopped (Ctrl-S) must not stop its writer."""

    def __init__(self, out: TextIO) -> None:
        self._target = out
        self._pending = ""
        self._poll: select.poll | None = None
        try:
            fd = out.fileno()
        except (OSError, ValueError):
            return  # no file behind it
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
                self._pending = ""  # the terminal is gone, and what was meant for it too
                raise

    def finish(self) -> None:
        """Write the rest, waiting for the reader if need be."""
        self._poll = None
        self.flush()


class Area:
    """Draws pages of lines one over the other. Raises OSError or ValueError when the terminal is gone."""

    def __init__(self, out: TextIO, *, width: int | None = None, height: int | None = None) -> None:
        self._out = PatientWriter(out)
        self._console = _Terminal(
            file=cast(TextIO, self._out), highlight=False, markup=False, emoji=False, width=width, height=height
        )
        self._live: Live | None = None
        self._shown: Sequence[Line] = ()
        self._drawn_size = (0, 0)
        self.unicode = is_unicode(self._console)

    @property
    def size(self) -> tuple[int, int]:
        return self._console.width, self._console.height

    def is_ready(self) -> bool:
        """Whether the terminal has taken all that was written."""
        self._out.flush()
        return not self._out.behind

    def draw(self, lines: Sequence[Line], above: Sequence[Text] = ()) -> None:
        """Show `lines` in the place of the last ones, and print `above` before them. Does nothing if nothing is new."""
        size = self.size
        if not above and lines == self._shown and size == self._drawn_size:
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
            self._console.show_cursor(True)  # so that a program which is killed leaves a terminal that works
        elif size[0] < self._drawn_size[0]:
            self._make_room(size[0])
        self._live.update(Group(*(Text.assemble(*line.parts, no_wrap=True, overflow="crop") for line in lines)))
        with self._console:  # one write for both
            if above:
                self._console.print(Group(*above))
            self._live.refresh()
        self._shown, self._drawn_size = lines, size

    def _make_room(self, width: int) -> None:
        """A narrower terminal has wrapped what is shown: go up over the lines that this made."""
        more = sum(max(0, cell_len(line.plain) - 1) // width for line in self._shown)
        if more:
            steps = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * more
            self._console.control(Control(ControlType.CARRIAGE_RETURN, *steps))

    def close(self, above: Sequence[Text] = (), *, keep: bool = False) -> None:
        """Take the area away, or leave it as it is with `keep`; `above` is printed before."""
        if above:
            self._console.print(Group(*above))
        if self._live is not None:
            self._live.transient = not keep
            self._live.stop()
            self._live = None
        self._out.finish()


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """rich would leave the process here; a dispatcher goes on."""
        raise BrokenPipeError
