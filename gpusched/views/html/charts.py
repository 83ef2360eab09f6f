"""Charts as SVG in an HTML figure: lines and points over two axes, and boxes. Values in, text out.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; text takes the colour of the page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from gpusched.common.text import clean

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
INK = -1  # the colour of text
_GREY = "#888"
_NARROW, _WIDE, _HEIGHT = 600, 1230, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 8, 40  # margins around the values
_BOX_LINE, _BOX_LABEL, _LABEL_LENGTH = 19, 260, 38


@dataclass(frozen=True, slots=True)
class Scale:
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


@dataclass(frozen=True, slots=True)
class Marks:
    """One line, or points. `label`: in the legend, "" for none. `colour`: a number, None for grey.

    `names` are shown when the pointer is on a point, the first of them on the line.
    """

    label: str
    points: Sequence[tuple[float, float]]
    names: Sequence[str] = ()
    colour: int | None = None
    width: float = 0.0  # of the line; 0: points


@dataclass(frozen=True, slots=True)
class Box:
    """Five values of a group, ascending: the ends of its whiskers, its quartiles, and its median between these."""

    label: str
    values: tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class Chart:
    """Marks over two axes, or boxes over one. `usual`: values of y that are shaded; `diagonal`: where x is y."""

    title: str
    note: str
    x: Scale
    y: Scale | None = None
    marks: Sequence[Marks] = ()
    boxes: Sequence[Box] = field(default=(), kw_only=True)
    usual: tuple[float, float] | None = None
    diagonal: bool = False
    is_wide: bool = False


def figure(chart: Chart) -> str:
    """Return a chart with its title, its legend and its note."""
    keys = "".join(
        f' <span><b style="color:{_colour(each)}">■</b> {_text(each.label)}</span>'
        for each in chart.marks
        if each.label
    )
    drawing = _Drawing(chart)
    kind = ' class="wide"' if chart.is_wide or chart.boxes else ""
    return (
        f"<figure{kind}><figcaption><b>{_text(chart.title)}</b> {_text(chart.note)}{keys}</figcaption>"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawing.width} {drawing.bottom + _BOTTOM}" role="img" '
        'font-family="system-ui,sans-serif" font-size="12" fill="currentColor" '
        f'aria-label="{_text(chart.title)}">{"".join(drawing.parts())}</svg></figure>'
    )


def _text(text: str) -> str:
    return escape(clean(text))


def _colour(marks: Marks) -> str:
    named = {None: _GREY, INK: "currentColor"}
    return named.get(marks.colour) or COLOURS[(marks.colour or 0) % len(COLOURS)]


class _Drawing:
    """The elements of one chart. The values lie between `left` and `right`, `_TOP` and `bottom`."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self.width = _WIDE if chart.is_wide or chart.boxes else _NARROW
        self.left, self.right = _BOX_LABEL if chart.boxes else _LEFT, self.width - _RIGHT
        self.bottom = _TOP + (_BOX_LINE * len(chart.boxes) or _HEIGHT)

    def x(self, value: float) -> float:
        return round(self.left + self.chart.x.place(value) * (self.right - self.left), 1)

    def y(self, value: float) -> float:
        place = self.chart.y.place(value) if self.chart.y else 0.0
        return round(self.bottom - place * (self.bottom - _TOP), 1)

    def parts(self) -> Iterator[str]:
        chart = self.chart
        if chart.usual and chart.y:
            low, high = (self.y(value) for value in chart.usual)
            size = f'width="{self.right - self.left}" height="{low - high:.1f}"'
            yield f'<rect x="{self.left}" y="{high}" {size} fill="#888" fill-opacity=".08"/>'
        yield from self._grid()
        if chart.diagonal and chart.y:
            ends = (max(chart.x.low, chart.y.low), min(chart.x.high, chart.y.high))
            line = "L".join(f"{self.x(end)} {self.y(end)}" for end in ends)
            yield f'<path d="M{line}" stroke="currentColor" stroke-dasharray="4 3"/>'
        for marks in chart.marks:
            yield from self._line(marks) if marks.width else self._points(marks)
        for n, box in enumerate(chart.boxes):
            yield from self._box(box, _TOP + _BOX_LINE * (n + 0.5))

    def _grid(self) -> Iterator[str]:
        """Yield lines at round values, their numbers, and the labels of the axes."""
        x, y = self.chart.x, self.chart.y
        for tick in x.ticks():
            yield f'<path d="M{self.x(tick)} {_TOP}V{self.bottom}" stroke="#888" stroke-opacity=".2"/>'
            yield _label(_number(tick), self.x(tick), self.bottom + 15)
        yield _label(x.label, (self.left + self.right) // 2, self.bottom + 33)
        if y is None:
            return
        for tick in y.ticks():
            yield f'<path d="M{self.left} {self.y(tick)}H{self.right}" stroke="#888" stroke-opacity=".2"/>'
            yield _label(_number(tick), self.left - 6, self.y(tick) + 4, 'text-anchor="end"')
        middle = (_TOP + self.bottom) // 2
        yield _label(y.label, 12, middle, f'text-anchor="middle" transform="rotate(-90 12 {middle})"')

    def _line(self, marks: Marks) -> Iterator[str]:
        path = "L".join(f"{self.x(x)} {self.y(y)}" for x, y in marks.points)
        style = (
            f'stroke="{_colour(marks)}" stroke-width="{marks.width:g}" opacity="{min(1, 0.3 + marks.width / 4):.2g}"'
        )
        yield f'<path d="M{path}" fill="none" {style}>{_title(marks.names, 0)}</path>'

    def _points(self, marks: Marks) -> Iterator[str]:
        yield f'<g fill="{_colour(marks)}" opacity=".75">'
        for n, (x, y) in enumerate(marks.points):
            yield f'<circle cx="{self.x(x)}" cy="{self.y(y)}" r="3.2">{_title(marks.names, n)}</circle>'
        yield "</g>"

    def _box(self, box: Box, down: float) -> Iterator[str]:
        low, first, middle, third, high = map(self.x, box.values)
        label = box.label if len(box.label) <= _LABEL_LENGTH else f"…{box.label[-_LABEL_LENGTH:]}"
        yield _label(label, self.left - 8, down + 4, 'text-anchor="end"')
        yield f'<path d="M{low} {down}H{high}" stroke="currentColor"/>'
        size = f'width="{third - first:.1f}" height="12"'
        yield f'<rect x="{first}" y="{down - 6}" {size} fill="{COLOURS[0]}" opacity=".55"/>'
        yield f'<path d="M{middle} {down - 6}v12" stroke="currentColor" stroke-width="2"/>'


def _label(text: str, x: float, y: float, style: str = 'text-anchor="middle"') -> str:
    return f'<text x="{x}" y="{y}" {style}>{_text(text)}</text>'


def _title(names: Sequence[str], n: int) -> str:
    return f"<title>{_text(names[n])}</title>" if names else ""


def _number(value: float) -> str:
    return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-") if abs(value) >= 1e5 else f"{value:.6g}"
