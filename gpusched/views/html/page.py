"""Make one self-contained HTML page of the results of many analyses. Returns text; writes and reads no file.

The page loads nothing, and its policy forbids the browser to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from gpusched.views.html.charts import Chart, figure
from gpusched.views.templates import environment, read_files


class ModelLine(NamedTuple):
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

    @property
    def remarks(self) -> str:
        return "; ".join(filter(None, (self.flag, self.notes)))


class ModelReport(NamedTuple):
    """The contents of the page. `columns` are heads of numbers with their decimal places."""

    title: str
    about: str
    columns: tuple[tuple[str, int], ...]
    word_columns: tuple[str, ...]
    models: tuple[ModelLine, ...]
    charts: tuple[Chart, ...] = ()

    def number_texts(self, model: ModelLine) -> Iterator[str]:
        """Yield the numbers of a model with their decimal places; "" for one that is not known."""
        for value, (_, places) in zip(model.numbers, self.columns, strict=True):
            yield f"{value:,.{places}f}" if value is not None and math.isfinite(value) else ""


_TEMPLATE = environment(read_files(str(__package__), "models.html")).get_template("models.html")


def render(report: ModelReport) -> str:
    """Return the page."""
    by_state = {state: [m for m in report.models if m.state == state] for state in ("done", "failed", "waiting")}
    done, waiting = by_state["done"], by_state["waiting"]
    words = [f"{len(done)} done", f"{len(by_state['failed'])} failed"]
    words += [f"{len(waiting)} not yet"] if waiting else []
    flags = Counter(model.flag for model in done if model.flag)
    words += [f"{count} {flag} and in no mean" for flag, count in flags.items()]
    return _TEMPLATE.render(
        report=report,
        counts=f"{', '.join(words)} of {len(report.models)} models",
        done=done,
        stopped={
            "Failed": [(each.name, each.reason) for each in by_state["failed"]],
            "Not yet": [(each.name, each.reason) for each in waiting],
            "Not analysed in full": [(each.name, each.missing) for each in done if each.missing],
        },
        figure=figure,
    )
