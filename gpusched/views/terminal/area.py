"""Draw over a part of a terminal, below the text that scrolls. Knows nothing of the contents; starts no thread."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import TextIO, cast

from rich.console import Console, Group
from rich.live import Live

from gpusched.views.lines import PatientWriter
from gpusched.views.tables import Line, cut

SHOWN_AGAIN = 200  # lines above, at a new size


def can_be_drawn_over(out: TextIO) -> bool:
    """Return True if this is a terminal that can move its cursor."""
    return out.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class Area:
    """Draws pages of lines over each other. Raises OSError or ValueError if the terminal is gone."""

    def __init__(self, out: TextIO) -> None:
        self._out = PatientWriter(out)
        self._console = _Terminal(file=cast(TextIO, self._out), highlight=False, markup=False, emoji=False)
        self._live: Live | None = None
        self._lines: Sequence[Line] = ()
        self._above: deque[Line] = deque(maxlen=SHOWN_AGAIN)  # the last lines that were printed above
        self._drawn_size = (0, 0)

    @property
    def size(self) -> tuple[int, int]:
        return self._console.width, self._console.height

    def is_ready(self) -> bool:
        """Return True if the terminal has taken all text."""
        self._out.flush()
        return not self._out.behind

    def draw(self, lines: Sequence[Line], above: Sequence[Line] = ()) -> None:
        """Replace the last page by `lines`, and print `above` before them. Does nothing if nothing has changed."""
        size = self.size
        if not above and lines == self._lines and size == self._drawn_size:
            return
        self._above.extend(above)
        with self._console:  # one write for all
            if self._live is not None and size != self._drawn_size:
                self._clear(self._live)
                above = list(self._above)[max(0, len(self._above) + len(lines) - size[1]) :]
            if self._live is None:
                self._live = self._start()
            self._live.update(Group(*(cut(line, size[0]) for line in lines)))
            if above:
                self._console.print(Group(*above))
            self._live.refresh()
        self._lines, self._drawn_size = lines, size

    def _start(self) -> Live:
        live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        live.start()
        self._console.show_cursor(True)  # so that the terminal stays usable if this program is killed
        return live

    def _clear(self, live: Live) -> None:
        """Clear the whole screen: at a new size a terminal has wrapped and moved what was drawn, nobody knows how."""
        live.update("")
        self._console.clear()
        live.stop()
        self._console.clear()
        self._live = None

    def close(self, above: Sequence[Line] = ()) -> None:
        """Remove the area; `above` is printed before."""
        if above:
            self._console.print(Group(*above))
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._out.finish()


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Raise, since rich would end the process here, and a dispatcher must go on."""
        raise BrokenPipeError
