"""Draw over a part of a terminal, below the text that scrolls. Knows nothing of the contents; starts no thread."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO, cast

from rich.console import Console, Group
from rich.live import Live

from gpusched.views.lines import PatientWriter
from gpusched.views.tables import Line, cut


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
        self._live.update(Group(*(cut(line, size[0]) for line in lines)))
        with self._console:  # one write for both
            if above:
                self._console.print(Group(*above))
            self._live.refresh()
        self._lines, self._drawn_size = lines, size

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
