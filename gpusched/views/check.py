"""A checked list -> its page: the jobs as they would run, the findings, and whether a run would take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpusched.views import tables
from gpusched.views.tables import Line, Row
from gpusched.views.words import command_text, count


def page(jobs: Sequence[tuple[int, str, bytes]], findings: str, counts: Mapping[str, int], refusal: str) -> list[Line]:
    """Return the page for people.

    `jobs` are line, attributes and command of each job; `counts` the numbers of findings by severity; `refusal` says
    why a run would refuse the list, or is empty.
    """
    rows: list[Row] = [
        [str(line), attributes, [command_text(part) for part in command.split(b"\n")]]
        for line, attributes, command in jobs
    ]
    lines = tables.grid(["LINE", "ATTRIBUTES", "COMMAND"], rows, right="LINE")
    if findings:
        lines += [*([tables.line()] if lines else []), *(tables.line(each) for each in findings.split("\n"))]
    parts = [count(counts[kind], kind) for kind in ("error", "warning", "hint") if counts.get(kind)]
    end = f": {refusal}, and gpusched run takes nothing of it" if refusal else ""
    style = tables.STATES["failed" if refusal else "succeeded"]
    lines += [tables.line()] if lines else []
    return [*lines, tables.line((", ".join([count(len(jobs), "job"), *parts]), style), end)]
