"""Make one self-contained HTML page of the results of many analyses. Returns text; writes and reads no file.

All text from outside is escaped. The page loads nothing, and its policy forbids the browser to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from string import Template
from urllib.parse import quote

from gpusched.common.text import clean
from gpusched.views.html.charts import Chart, figure


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
    flag: str = ""  # why its means count nowhere
    missing: str = ""  # what is not analysed of it, and its flag


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The contents of the page. `columns` are heads of numbers with their decimal places."""

    title: str
    about: str
    columns: tuple[tuple[str, int], ...]
    word_columns: tuple[str, ...]
    models: tuple[ModelLine, ...]
    charts: tuple[Chart, ...] = ()


def render(report: ModelReport) -> str:
    """Return the page."""
    by_state = {state: [m for m in report.models if m.state == state] for state in ("done", "failed", "waiting")}
    words = [f"{len(by_state['done'])} done", f"{len(by_state['failed'])} failed"]
    words += [f"{len(by_state['waiting'])} not yet"] if by_state["waiting"] else []
    flags = Counter(model.flag for model in by_state["done"] if model.flag)
    words += [f"{count} {flag} and in no mean" for flag, count in flags.items()]
    charts = "".join(map(figure, report.charts))
    return _PAGE.substitute(
        title=_text(report.title),
        counts=f"{', '.join(words)} of {len(report.models)} models",
        about=_text(report.about),
        stopped=_listed("Failed", [(each.name, each.reason) for each in by_state["failed"]])
        + _listed("Not yet", [(each.name, each.reason) for each in by_state["waiting"]])
        + _listed("Not analysed in full", [(each.name, each.missing) for each in by_state["done"] if each.missing]),
        charts=f'<section class="charts">{charts}</section>' if charts else "",
        table=_table(report, by_state["done"]) if by_state["done"] else "",
    )


def _text(text: str) -> str:
    return escape(clean(text))


def _listed(head: str, models: Sequence[tuple[str, str]]) -> str:
    if not models:
        return ""
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_text(reason)}</td></tr>" for name, reason in models)
    return f"<details open><summary>{head} ({len(models)})</summary><table><tbody>{rows}</tbody></table></details>"


def _table(report: ModelReport, models: Iterable[ModelLine]) -> str:
    heads = ["Model", *(name for name, _ in report.columns), *report.word_columns]
    cells = "".join(f"<th>{_text(head)}</th>" for head in heads)
    rows = "\n".join(_row(model, report.columns) for model in models)
    return f"<table><thead><tr>{cells}<th>Files</th></tr></thead><tbody>\n{rows}\n</tbody></table>"


def _row(model: ModelLine, columns: Sequence[tuple[str, int]]) -> str:
    notes = "; ".join(filter(None, (model.flag, model.notes)))
    note = f"<br><small>{_text(notes)}</small>" if notes else ""
    cells = [f"<th>{_text(model.name)}{note}</th>"]
    for value, (_, places) in zip(model.numbers, columns, strict=True):
        is_number = value is not None and math.isfinite(value)
        cells.append(f'<td data-v="{value:.12g}">{value:,.{places}f}</td>' if is_number else "<td></td>")
    cells += [f"<td>{_text(word)}</td>" for word in model.words]
    links = " ".join(f'<a href="{escape(quote(path))}">{_text(label)}</a>' for label, path in model.links)
    return f"<tr>{''.join(cells)}<td>{links}</td></tr>"


_PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title><style>
:root{color-scheme:light dark}
body{font:13px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:1280px;padding:0 1rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{padding:.28rem .45rem;border-bottom:1px solid #8884;text-align:left;vertical-align:top}
tbody th{overflow-wrap:anywhere;min-width:13rem;font-weight:500}td[data-v]{text-align:right}
thead th{position:sticky;top:0;background:Canvas;white-space:nowrap}
details{margin:1rem 0}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr));gap:1.2rem}
figure{margin:0;break-inside:avoid}.wide{grid-column:1/-1}figcaption span{white-space:nowrap;margin-left:.6rem}
svg{width:100%;height:auto}
@media print{:root{color-scheme:light}body{max-width:none;margin:0;font-size:8pt}
.charts{grid-template-columns:1fr 1fr}svg{font-size:18px}.wide svg{font-size:15px}
thead th{position:static}table{font-size:6.5pt}td,th{padding:.6mm}
tbody th{min-width:34mm}tr{break-inside:avoid}thead~tbody td:last-child,thead th:last-child{display:none}}
</style></head><body>
<h1>$title</h1>
<p>$counts<br><small>$about</small></p>
$stopped
$charts
$table
</body></html>
""")
