"""A widget that shows lines of text, of which it draws only what is in view and has changed. Knows no job."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpusched.views.tables import Line, cut


class LinesView(ScrollView):
    """Lines that are cut at the edge; those of a page that `wraps` go on in the next one."""

    def __init__(self, *, id: str, wraps: bool = False, fits: bool = False, takes_keys: bool = False) -> None:
        """Make the widget empty. One that `fits` is as high as its lines; one that `takes_keys` is scrolled by them."""
        super().__init__(id=id)
        self.can_focus = takes_keys
        self._wraps, self._fits = wraps, fits
        self._source: Sequence[Line] = ()
        self.lines: Sequence[Line] = ()
        self._about: object = None
        self.virtual_size = Size(0, 0)

    def show(self, lines: Sequence[Line], *, about: object = None, from_end: bool = False) -> None:
        """Show other lines. `from_end`: the last ones, unless somebody has scrolled back in those `about` the same."""
        is_new, self._about = about != self._about, about
        if lines == self._source and not is_new:
            return
        was_at_end = self.scroll_offset.y >= self.max_scroll_y - 1
        self._source = lines
        self.lay_out()
        if from_end and (was_at_end or is_new):
            self.call_after_refresh(self.scroll_end, animate=False)
        elif is_new:
            self.scroll_home(animate=False)

    def lay_out(self) -> None:
        """Take in another width, or other lines."""
        before, width = self.lines, max(1, self.scrollable_content_region.width)
        self.lines = self._source
        if self._wraps:
            self.lines = [part for each in self._source for part in each.wrap(self.app.console, width, tab_size=4)]
        if self._fits:
            self.styles.height = max(1, len(self.lines))
        self.virtual_size = Size(width, len(self.lines))
        if len(before) != len(self.lines):
            self.refresh()
            return
        for n, (one, other) in enumerate(zip(before, self.lines, strict=True)):
            if one != other or one.spans != other.spans:
                self.refresh(Region(0, n - self.scroll_offset.y, self.size.width, 1))

    def on_resize(self) -> None:
        self.lay_out()

    def render_line(self, y: int) -> Strip:
        n = y + self.scroll_offset.y
        return self.draw(self.lines[n] if n < len(self.lines) else Text())

    def draw(self, text: Line) -> Strip:
        """Return a line as wide as the widget."""
        width = self.size.width
        return Strip(cut(text, width).render(self.app.console)).adjust_cell_length(width)
