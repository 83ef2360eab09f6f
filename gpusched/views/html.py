"""Make one self-contained HTML page of the results of many analyses. Returns text; writes and reads no file.

All text from outside is escaped. The page loads nothing, and its policy forbids the browser to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from urllib.parse import quote

from gpusched.common.text import clean

BINS = 32
SHOWN_STOPPED = 10  # a longer list is folded
_LARGEST = 1e9  # larger than any exponent; excludes NaN and infinity too
_WIDTH, _HEIGHT = 460, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 10, 18, 22


@dataclass(frozen=True, slots=True)
class ModelLine:
    """One model. `state`: done, failed, waiting. `links` are labels with paths beside the page."""

    name: str
    state: str
    numbers: tuple[float | None, ...] = ()  # one for each of `Report.columns`
    words: tuple[str, ...] = ()  # one for each of `Report.word_columns`
    links: tuple[tuple[str, str], ...] = ()
    reason: str = ""  # why it failed, or where it stands
    notes: str = ""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The contents of the page. `columns` are heads of numbers with their decimal places."""

    title: str
    about: str
    columns: tuple[tuple[str, int], ...]
    word_columns: tuple[str, ...]
    models: tuple[ModelLine, ...]
    distributions: tuple[tuple[str, tuple[float, ...]], ...] = ()  # a caption and the numbers


def render(report: ModelReport) -> str:
    """Return the page."""
    counts = {state: sum(m.state == state for m in report.models) for state in ("done", "failed", "waiting")}
    words = [f"{counts['done']} done", f"{counts['failed']} failed"]
    words += [f"{counts['waiting']} not yet"] if counts["waiting"] else []
    figures = "".join(_histogram(caption, values) for caption, values in report.distributions)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">",
            f"<title>{_text(report.title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{_text(report.title)}</h1>",
            f"<p>{', '.join(words)} of {len(report.models)} models<br><small>{_text(report.about)}</small></p>",
            f'<div class="figures">{figures}</div>' if figures else "",
            _stopped("Failed", [m for m in report.models if m.state == "failed"], "bad"),
            _stopped("Not yet", [m for m in report.models if m.state == "waiting"], ""),
            _table(report),
            f"<script>{_SCRIPT}</script></body></html>",
            "",
        ]
    )


def _text(text: str) -> str:
    return escape(clean(text))


def _stopped(head: str, models: Sequence[ModelLine], tone: str) -> str:
    if not models:
        return ""
    rows = "".join(
        f'<tr><th scope="row" class="{tone}">{_text(model.name)}</th><td>{_text(model.reason)}</td></tr>'
        for model in models
    )
    is_open = " open" if len(models) <= SHOWN_STOPPED else ""
    return f"<details{is_open}><summary>{head} ({len(models)})</summary><table><tbody>{rows}</tbody></table></details>"


def _table(report: ModelReport) -> str:
    models = [model for model in report.models if model.state == "done"]
    if not models:
        return ""
    heads = ["Model", *(name for name, _ in report.columns), *report.word_columns, "Files"]
    numeric = range(1, 1 + len(report.columns))
    cells = "".join(
        f'<th scope="col"{" class=n" if n in numeric else ""}><button type="button">{_text(head)}</button></th>'
        if head != "Files"
        else f'<th scope="col">{head}</th>'
        for n, head in enumerate(heads)
    )
    digits = [places for _, places in report.columns]
    rows = "\n".join(_row(model, digits) for model in models)
    return (
        '<p><label>Show <input id="filter" type="search" placeholder="part of a name"></label> '
        f'<small id="shown"></small></p><table id="models"><thead><tr>{cells}</tr></thead>'
        f"<tbody>\n{rows}\n</tbody></table>"
    )


def _row(model: ModelLine, digits: Sequence[int]) -> str:
    note = f"<br><small>{_text(model.notes)}</small>" if model.notes else ""
    cells = [f'<th scope="row">{_text(model.name)}{note}</th>']
    for value, places in zip(model.numbers, digits, strict=True):
        is_number = value is not None and math.isfinite(value)
        cells.append(
            f'<td class="n" data-v="{value:.12g}">{value:,.{places}f}</td>' if is_number else '<td class="n"></td>'
        )
    cells += [f"<td>{_text(word)}</td>" for word in model.words]
    links = " ".join(f'<a href="{escape(quote(path))}">{_text(label)}</a>' for label, path in model.links)
    return f"<tr>{''.join(cells)}<td class=f>{links}</td></tr>"


# ---- distribution ----------------------------------------------------------------------------------


def _histogram(caption: str, values: Iterable[float]) -> str:
    """Draw a histogram with the median marked; outliers far beyond the others are only counted."""
    values = sorted(value for value in values if abs(value) < _LARGEST)
    if not values:
        return ""
    low, high = values[0], values[-1]
    usual = values[math.ceil(0.98 * len(values)) - 1]
    if high - low > 2 * (usual - low) > 0:
        high = usual
    if high - low <= 1e-6 * max(1.0, abs(low)):
        low, high = low - 0.5, high + 0.5
    step = _step((high - low) / min(BINS, max(8, round(2 * math.sqrt(len(values))))))
    first = math.floor(low / step) * step
    number = max(1, math.ceil((high - first) / step - 1e-9))
    counts = [0] * number
    beyond = 0
    for value in values:
        if value > high:
            beyond += 1
        else:
            counts[min(number - 1, int((value - first) / step))] += 1
    last = first + number * step
    width = (_WIDTH - _LEFT - _RIGHT) / number
    base = _HEIGHT - _BOTTOM
    scale = (base - _TOP) / max(counts)

    def x(value: float) -> float:
        return _LEFT + (value - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    parts = [f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>']
    top = max(counts)
    parts.append(f'<text x="{_LEFT - 6}" y="{base - scale * top + 4:.1f}" text-anchor="end">{top}</text>')
    parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{_TOP}" y2="{_TOP}"/>')
    parts.append(f'<text x="{_LEFT - 6}" y="{base + 4}" text-anchor="end">0</text>')
    for n, many in enumerate(counts):
        if many:
            start, height = first + n * step, scale * many
            parts.append(
                f'<rect x="{_LEFT + n * width + 1:.2f}" y="{base - height:.2f}" width="{max(1.0, width - 2):.2f}" '
                f'height="{height:.2f}"><title>{start:.3g} to {start + step:.3g}: {many}</title></rect>'
            )
    tick = _step((last - first) / 6)
    n = math.ceil(first / tick - 1e-9)
    while n * tick <= last + 1e-9:
        parts.append(f'<text x="{x(n * tick):.1f}" y="{base + 16}" text-anchor="middle">{n * tick:.4g}</text>')
        n += 1
    middle = median(values)
    at = x(min(middle, last))
    anchor = "end" if at > _WIDTH * 0.7 else "start"
    shift = -5 if anchor == "end" else 5
    parts.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP - 6}" y2="{base}"/>')
    label = f"median {middle:.2f}"
    parts.append(f'<text class="strong" x="{at + shift:.1f}" y="{_TOP - 6}" text-anchor="{anchor}">{label}</text>')
    more = f", {beyond} beyond {high:.3g} not drawn" if beyond else ""
    caption = f"{caption} ({len(values)}{more})"
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_text(f"{caption}, {label}")}">'
        f"{''.join(parts)}</svg><figcaption>{_text(caption)}</figcaption></figure>"
    )


def _step(about: float) -> float:
    """Return the smallest round number, 1, 2 or 5 times a power of ten, that is at least as large."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= about * 0.999)


_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d8dee4;--paper:#fff;--head:#f6f8fa;--bar:#3572b0;
--mark:#b3541e;--bad:#b3261e;--link:#0b5cad}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#9aa4af;--line:#343b44;--paper:#14171b;--head:#1c2127;
--bar:#6ea8e0;--mark:#e59866;--bad:#ff8a80;--link:#7db7f0}}
body{font:13px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:1.5rem auto;max-width:1280px;
padding:0 1rem}
h1{font-size:1.4rem;margin:0 0 .3rem}small,figcaption{color:var(--soft)}a{color:var(--link)}
.figures{display:flex;flex-wrap:wrap;gap:1rem 2rem}figure{margin:0;flex:1 1 380px;max-width:560px}
svg{width:100%;height:auto;font:11px system-ui,sans-serif}svg text{fill:var(--soft)}svg .strong{fill:var(--ink)}
rect{fill:var(--bar)}.axis{stroke:var(--soft)}.grid{stroke:var(--line)}.mark{stroke:var(--mark);stroke-width:1.5}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{padding:.28rem .45rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top;font-weight:400}
tbody th{overflow-wrap:anywhere;min-width:13rem;font-weight:500}
details th{width:24rem}.n{text-align:right}.bad{color:var(--bad)}
.f{white-space:nowrap}td{overflow-wrap:break-word}details{margin:1rem 0}summary{cursor:pointer;font-weight:600}
thead th{position:sticky;top:0;background:var(--head);white-space:nowrap}
button{all:unset;cursor:pointer;font-weight:600}button:focus-visible{outline:2px solid var(--link)}
th[aria-sort=ascending] button::after{content:" ▲"}th[aria-sort=descending] button::after{content:" ▼"}
input{font:inherit;padding:.2rem .5rem;width:16rem;max-width:60vw}
@media print{thead th{position:static}input{display:none}}
"""

_SCRIPT = """
const table = document.getElementById("models");
if (table) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const value = (row, n) => row.cells[n].dataset.v === undefined ? row.cells[n].textContent : +row.cells[n].dataset.v;
  heads.forEach((head, n) => head.firstElementChild && (head.onclick = () => {
    const up = head.getAttribute("aria-sort") !== "ascending", sign = up ? 1 : -1;
    heads.forEach(each => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...[...body.rows].sort((a, b) => {
      const x = value(a, n), y = value(b, n);
      if (x === "" || y === "") return (x === "") - (y === "");
      return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
    }));
  }));
  const filter = document.getElementById("filter"), shown = document.getElementById("shown");
  filter.oninput = () => {
    const part = filter.value.toLowerCase();
    rows.forEach(row => row.hidden = !row.cells[0].textContent.toLowerCase().includes(part));
    shown.textContent = part ? rows.filter(row => !row.hidden).length + " of " + rows.length : "";
  };
}
"""
