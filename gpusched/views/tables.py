"""Lay out columns and pages of text: coloured and cut to fit on a terminal, plain and whole elsewhere. Knows no job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TextIO

from rich.console import Console
from rich.text import Text

from gpusched.views.words import count

Line = Text  # of a table (no_wrap): cut at the terminal's edge; it wraps others
Cell = str | tuple[str, str] | Text  # a text, or a text and its style
Row = Sequence[Cell | list[Cell]]

CUT_WIDTH = 24
HEAD = "bold"
DIM = "dim"
TONES = {"good": "green", "ours": "cyan", "wait": "blue", "busy": "yellow", "bad": "bold red", "": ""}
STATES = {
    "running": "cyan",
    "succeeded": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "held": "yellow",
    "queued": "",
}


def line(*cells: Cell) -> Line:
    return Text.assemble(*cells)


def counted(parts: Iterable[tuple[str, int]], gap: str = ", ") -> Line:
    """Return the numbers of jobs in each state."""
    return Text(gap).join(Text(f"{number} {word}", STATES[word] if number else DIM) for word, number in parts)


def grid(
    head: Sequence[str],
    rows: Iterable[Row],
    *,
    right: str = "",
    indent: int = 0,
    fit: tuple[int, Sequence[int]] = (0, ()),
) -> list[Line]:
    """Align columns, two blanks apart. `right` names the columns that are right-aligned.

    A cell may be a list: it has several lines in its row. Columns without any text are left out, as is a table without
    rows. To `fit` into a width, the columns of these numbers are left out one by one, the first one first; the last
    column that stays is cut, but not below CUT_WIDTH.
    """
    table = [[[line(each) for each in (cell if isinstance(cell, list) else [cell])] for cell in row] for row in rows]
    longest = [max((text.cell_len for row in table for text in row[n]), default=0) for n in range(len(head))]
    used = [n for n, length in enumerate(longest) if length]
    for n in fit[1]:
        needs = [max(longest[m], len(head[m])) + 2 for m in used]
        if n in used and sum(needs[:-1]) + min(needs[-1] - 2, CUT_WIDTH) > fit[0]:
            used.remove(n)
    body = [parts for row in table for parts in zip_longest(*(row[n] for n in used), fillvalue=Text())]
    if any(head) and body:
        body.insert(0, tuple(Text(head[n], HEAD) for n in used))
    widths = [max(text.cell_len for text in column) for column in zip(*body, strict=True)]
    flush = [head[n] in right.split() for n in used]

    def lay_out(parts: Sequence[Text]) -> Line:
        joined = Text(" " * indent, no_wrap=True)
        for part, width, is_flush in zip(parts, widths, flush, strict=True):
            blanks = " " * (width - part.cell_len)
            joined.append(blanks if is_flush else "").append_text(part).append("  " if is_flush else blanks + "  ")
        joined.rstrip()
        return joined

    return [lay_out(parts) for parts in body]


def bar(shares: Sequence[tuple[float, str]], width: int) -> Text:
    """Draw a bar of `width` cells: each share in its style, the rest dim. Full and empty are only 1 and 0."""
    drawn = Text()
    for fraction, style in shares:
        cells = round(fraction * width)
        if 0 < fraction < 1:
            cells = min(width - 1, max(1, cells))
        drawn.append("━" * min(width - len(drawn), cells), style)
    return drawn.append("─" * (width - len(drawn)), DIM)


def write(out: TextIO, lines: Iterable[Line], *, console: Console | None = None) -> None:
    """Print a page. If `out` is no terminal: without colours, cuts and line breaks."""
    console = console or Console(file=out, highlight=False, markup=False, emoji=False, force_terminal=out.isatty())
    for text in lines:
        if not console.is_terminal:
            out.write(text.plain.rstrip() + "\n")
        elif text.no_wrap:
            console.print(cut(text, console.width))
        else:
            console.print(text, soft_wrap=True)


def cut(text: Line, width: int) -> Line:
    """Remove the blanks at the end of a line, and cut it to `width` cells."""
    short = text.copy()
    short.rstrip()
    short.truncate(width, overflow="ellipsis")
    return short


def fit_height(lines: list[Line], height: int, noun: str = "line") -> list[Line]:
    """Return as many lines as there is room for; the last one says how many are left out."""
    if len(lines) <= height:
        return lines
    shown = lines[: max(0, height - 1)]
    more = count(len(lines) - len(shown), f"more {noun}")
    return [*shown, line((f"… and {more}", DIM))]
