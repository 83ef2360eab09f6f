"""Columns and pages of text: coloured and cut to fit on a terminal, plain and whole elsewhere. Knows no job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gpusched.views.words import fit

Part = tuple[str, str]  # text, style
Cell = str | Part
Row = Sequence[Cell | list[Cell]]

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


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a page. `table`: cut at the terminal's edge; else it goes on in the next line, indented alike."""

    parts: tuple[Part, ...] = ()
    table: bool = False

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.parts).rstrip()


def line(*cells: Cell) -> Line:
    return Line(tuple(_part(cell) for cell in cells))


def _part(cell: Cell) -> Part:
    return (cell, "") if isinstance(cell, str) else cell


def grid(
    head: Sequence[str],
    rows: Iterable[Row],
    *,
    right: str = "",
    indent: int = 0,
) -> list[Line]:
    """Aligned columns, two blanks apart. `right` names the columns that end flush.

    A cell may be a list: it takes several lines of its row. Columns that are empty throughout are left out.
    """
    table = [[_cell(cell) for cell in row] for row in rows]
    used = [n for n in range(len(head)) if any(text for row in table for text, _ in row[n])]
    wide = {n: max([cell_len(head[n]), *(cell_len(t) for row in table for t, _ in row[n])]) for n in used}
    flush = {n for n in used if head[n] in right.split()}
    title: list[Part] = [(" " * indent, "")]
    for n in used:
        title += _padded((head[n], HEAD), wide[n], n in flush, n == used[-1])
    lines = [Line(tuple(title), table=True)] if any(head) else []
    for cells in table:
        for depth in range(max(len(cells[n]) for n in used) if used else 0):
            parts: list[Part] = [(" " * indent, "")]
            for n in used:
                part = cells[n][depth] if depth < len(cells[n]) else ("", "")
                parts += _padded(part, wide[n], n in flush, n == used[-1])
            lines.append(Line(tuple(parts), table=True))
    return lines


def _cell(cell: Cell | list[Cell]) -> list[Part]:
    return [_part(each) for each in cell] if isinstance(cell, list) else [_part(cell)]


def _padded(part: Part, width: int, flush: bool, last: bool) -> list[Part]:
    blanks = " " * (width - cell_len(part[0]))
    cell = [(blanks, ""), part] if flush else [part, ("" if last else blanks, "")]
    return cell if last else [*cell, ("  ", "")]


def bar(shares: Sequence[tuple[float, str]], width: int, *, plain: bool = False) -> list[Part]:
    """A bar of `width` cells: each share of it in its style, the rest faint."""
    full, empty = ("#", "-") if plain else ("━", "─")
    parts: list[Part] = []
    left = width
    for fraction, style in shares:
        cells = min(left, _cells(fraction, width))
        left -= cells
        if cells:
            parts.append((full * cells, style))
    return [*parts, (empty * left, DIM)]


def _cells(fraction: float, width: int) -> int:
    """Never empty for something, never full for less than all."""
    if fraction <= 0 or fraction >= 1:
        return width if fraction >= 1 else 0
    return min(width - 1, max(1, round(fraction * width)))


def write(out: TextIO, lines: Iterable[Line], *, console: Console | None = None) -> None:
    """Print a page. Not on a terminal: no colour, nothing cut, nothing wrapped, whatever the width."""
    console = console or make_console(out)
    if not console.is_terminal:
        for each in lines:
            out.write(each.plain + "\n")
        return
    for text in laid_out(lines, console):
        console.print(text, overflow="ignore", no_wrap=True, crop=False)


def make_console(out: TextIO) -> Console:
    return Console(file=out, highlight=False, markup=False, emoji=False, force_terminal=_is_terminal(out))


def _is_terminal(out: TextIO) -> bool:
    try:
        return out.isatty()
    except ValueError:
        return False


def laid_out(lines: Iterable[Line], console: Console) -> Iterable[Text]:
    """The lines as they go to a terminal of the console's width."""
    mark = "…" if is_unicode(console) else "..."
    for each in lines:
        if each.table:
            yield Text.assemble(*cut(each, console.width, mark).parts)
        else:
            yield from _wrapped(Text.assemble(*each.parts), console)


def cut(each: Line, width: int, mark: str = "…") -> Line:
    """The line without blanks at its end, cut to `width` cells."""
    parts = list(each.parts)
    while parts and not parts[-1][0].strip():
        parts.pop()
    if sum(cell_len(text) for text, _ in parts) <= width:
        return Line(tuple(parts), each.table)
    kept: list[Part] = []
    room = width
    for n, (text, style) in enumerate(parts):
        cells = cell_len(text)
        if cells <= room - len(mark) or (n == len(parts) - 1 and cells <= room):
            kept.append((text, style))
            room -= cells
            continue
        kept.append((fit(text, room - len(mark), cell_len, "").rstrip() + mark, style))
        break
    return Line(tuple(kept), each.table)


def fit_height(lines: list[Line], height: int) -> list[Line]:
    """Return as many lines as there is room for; the last one says how many are left out."""
    if len(lines) <= height:
        return lines
    shown = lines[: max(0, height - 1)]
    return [*shown, line((f"… and {len(lines) - len(shown)} more lines: the terminal is low", DIM))]


def _wrapped(text: Text, console: Console) -> Iterable[Text]:
    """Broken at blanks, with what follows below the text after a label.

    A line with a word that fits nowhere, such as a path, is left to the terminal, so that it can be copied.
    """
    text.rstrip()
    label = re.match(r" *\S+ {2,}(?=\S)", text.plain)
    lead = len(label[0]) if label else len(text.plain) - len(text.plain.lstrip())
    indent = min(lead if label else lead + 2, console.width // 2)
    room = console.width - indent
    head, body = text[:lead], text[lead:]
    if cell_len(text.plain) <= console.width or any(cell_len(word) > room for word in body.plain.split()):
        yield text
        return
    for n, part in enumerate(body.wrap(console, room)):
        part.rstrip()
        yield (Text(" " * indent) if n else head).append_text(part)


def is_unicode(console: Console) -> bool:
    return console.encoding.lower().startswith("utf")
