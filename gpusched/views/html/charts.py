"""Charts as SVG in an HTML figure: lines and points over two axes, and boxes. Values in, text out.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; text takes the colour of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpusched.views.templates import environment, read_files

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
INK = -1  # the colour of text
_NARROW, _WIDE = 600, 1230
_BOX_LINE, _BOX_LABEL, _LABEL_LENGTH = 19, 260, 38
_TEMPLATE = environment(read_files(str(__package__), "figure.html")).get_template("figure.html")


class Scale(NamedTuple):
    """The values along one side of a chart. What lies outside is drawn on its edge."""

    label: str
    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies, from 0 to 1."""
        scale = math.log if self.is_log else float
        low, high = scale(self.low), scale(self.high)
        return (scale(min(self.high, max(self.low, value))) - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[float]:
        """Return a few round values."""
        if self.is_log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**n for n in range(first, last + 1, (last - first) // 6 + 1)]
        unit = 10.0 ** math.floor(math.log10(max(self.high - self.low, 1e-9)))
        step = next(unit * n for n in (0.2, 0.5, 1, 2) if (self.high - self.low) / (unit * n) <= 6)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]


class Marks(NamedTuple):
    """One line, or points. `label`: in the legend, "" for none. `colour`: a number, None for grey.

    `names` are shown when the pointer is on a point, the first of them on the line.
    """

    label: str
    points: Sequence[tuple[float, float]]
    names: Sequence[str] = ()
    colour: int | None = None
    width: float = 0.0  # of the line; 0: points

    @property
    def ink(self) -> str:
        """The name of its colour."""
        named = {None: "#888", INK: "currentColor"}
        return named.get(self.colour) or COLOURS[(self.colour or 0) % len(COLOURS)]


class Box(NamedTuple):
    """Five values of a group, ascending: the ends of its whiskers, its quartiles, and its median between these."""

    label: str
    values: tuple[float, float, float, float, float]

    @property
    def short_label(self) -> str:
        return self.label if len(self.label) <= _LABEL_LENGTH else f"…{self.label[-_LABEL_LENGTH:]}"


class Chart(NamedTuple):
    """Marks over two axes, or boxes over one. `usual`: values of y that are shaded; `diagonal`: where x is y."""

    title: str
    note: str
    x: Scale
    y: Scale | None = None
    marks: Sequence[Marks] = ()
    usual: tuple[float, float] | None = None
    diagonal: bool = False
    is_wide: bool = False
    boxes: Sequence[Box] = ()

    @property
    def fills_line(self) -> bool:
        return self.is_wide or bool(self.boxes)


class _Drawing:
    """The places of one chart. The values lie between `left` and `right`, `top` and `bottom`."""

    top = 8

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        self.width = _WIDE if chart.fills_line else _NARROW
        self.left, self.right = _BOX_LABEL if chart.boxes else 52, self.width - 10
        self.bottom = self.top + (_BOX_LINE * len(chart.boxes) or 290)
        self.height = self.bottom + 40

    def x(self, value: float) -> float:
        return round(self.left + self._chart.x.place(value) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        place = self._chart.y.place(value) if self._chart.y else 0.0
        return round(self.bottom - place * (self.bottom - self.top), 1)

    def boxes(self) -> Iterator[tuple[Box, float, Sequence[float]]]:
        """Yield each box with how far down it stands, and the places of its values."""
        for n, box in enumerate(self._chart.boxes):
            yield box, self.top + _BOX_LINE * (n + 0.5), [self.x(value) for value in box.values]

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        """Return a line through these points, as the path of an SVG."""
        return "M" + "L".join(f"{self.x(x)} {self.y(y)}" for x, y in points)


def figure(chart: Chart) -> str:
    """Return a chart with its title, its legend and its note."""
    return _TEMPLATE.render(chart=chart, d=_Drawing(chart), number=_number, box_colour=COLOURS[0])


def _number(value: float) -> str:
    return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-") if abs(value) >= 1e5 else f"{value:.6g}"
