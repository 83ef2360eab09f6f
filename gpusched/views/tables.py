"""Lay out columns and pages of text: coloured and cut to fit on a terminal, plain and whole elsewhere. Knows no job."""

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
    """One line of a page. `table`: it is cut at the terminal's edge; others are wrapped with the same indent."""

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
    """Align columns, two blanks apart. `right` names the columns that are right-aligned.

    A cell may be a list: it has several lines in its row. Columns without any text are left out.
    """
    table = [[_cell(cell) for cell in row] for row in rows]
    used = [n for n in range(len(head)) if any(text for row in table for text, _ in row[n])]
    widths = {n: max([cell_len(head[n]), *(cell_len(t) for row in table for t, _ in row[n])]) for n in used}
    flush = {n for n in used if head[n] in right.split()}

    def lay_out(parts: Sequence[Part]) -> Line:
        padded = [
            part
            for n, cell in zip(used, parts, strict=True)
            for part in _padded(cell, widths[n], n in flush, n == used[-1])
        ]
        return Line(((" " * indent, ""), *padded), table=True)

    lines = [lay_out([(head[n], HEAD) for n in used])] if any(head) else []
    for cells in table:
        for depth in range(max((len(cells[n]) for n in used), default=0)):
            lines.append(lay_out([cells[n][depth] if depth < len(cells[n]) else ("", "") for n in used]))
    return lines


def _cell(cell: Cell | list[Cell]) -> list[Part]:
    return [_part(each) for each in cell] if isinstance(cell, list) else [_part(cell)]


def _padded(part: Part, width: int, flush: bool, last: bool) -> list[Part]:
    blanks = " " * (width - cell_len(part[0]))
    cell = [(blanks, ""), part] if flush else [part, ("" if last else blanks, "")]
    return cell if last else [*cell, ("  ", "")]


def bar(shares: Sequence[tuple[float, str]], width: int, *, plain: bool = False) -> list[Part]:
    """Draw a bar of `width` cells: each share in its style, the rest dim."""
    full, empty = ("#", "-") if plain else ("━", "─")
    parts: list[Part] = []
    room = width
    for fraction, style in shares:
        cells = min(room, _cells(fraction, width))
        room -= cells
        if cells:
            parts.append((full * cells, style))
    return [*parts, (empty * room, DIM)]


def _cells(fraction: float, width: int) -> int:
    """Return the cells of a fraction: at least one if it is more than 0, and not all if it is less than 1."""
    if fraction <= 0 or fraction >= 1:
        return width if fraction >= 1 else 0
    return min(width - 1, max(1, round(fraction * width)))


def write(out: TextIO, lines: Iterable[Line], *, console: Console | None = None) -> None:
    """Print a page. If `out` is no terminal: without colours, cuts and line breaks."""
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
    """Yield the lines cut or wrapped to the console's width."""
    mark = "…" if is_unicode(console) else "..."
    for each in lines:
        if each.table:
            yield Text.assemble(*cut(each, console.width, mark).parts)
        else:
            yield from _wrapped(Text.assemble(*each.parts), console)


def cut(each: Line, width: int, mark: str = "…") -> Line:
    """Remove the blanks at the end of a line, and cut it to `width` cells."""
    parts = list(each.parts)
    while parts and not parts[-1][0].strip():
        parts.pop()
    if sum(cell_len(text) for text, _ in parts) <= width:
        return Line(tuple(parts), each.table)
    fitting: list[Part] = []
    room = width
    for n, (text, style) in enumerate(parts):
        cells = cell_len(text)
        if cells <= room - len(mark) or (n == len(parts) - 1 and cells <= room):
            fitting.append((text, style))
            room -= cells
            continue
        fitting.append((fit(text, room - len(mark), cell_len, "").rstrip() + mark, style))
        break
    return Line(tuple(fitting), each.table)


def fit_height(lines: list[Line], height: int) -> list[Line]:
    """Return as many lines as there is room for; the last one says how many are left out."""
    if len(lines) <= height:
        return lines
    shown = lines[: max(0, height - 1)]
    return [*shown, line((f"… and {len(lines) - len(shown)} more lines: the terminal is low", DIM))]


def _wrapped(text: Text, console: Console) -> Iterable[Text]:
    """Wrap a line at blanks; the next lines are indented to the text after the label.

    A line with a word that is too long, such as a path, is left to the terminal, so that it can be copied.
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
