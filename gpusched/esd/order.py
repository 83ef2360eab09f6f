"""The order in which the models of a list run, and the names of their jobs."""

from __future__ import annotations

from collections.abc import Iterable

from gpusched.esd.model_list import ModelRow
from gpusched.lists.attributes import parse_value


def job_name(row: ModelRow) -> str:
    """Return the name of the job of a model: the model's name, if a job may have it."""
    try:
        return str(parse_value("name", row.name.encode("utf-8", "surrogateescape")))
    except ValueError:
        return f"model-of-line-{row.line}"


def group_by_base(rows: Iterable[ModelRow]) -> list[ModelRow]:
    """Return the rows in the order of their jobs: models of one base are neighbours, the base is the first of them.

    No model waits for another. Jobs that run at the same time share the work on their base tensor by tensor: each
    reads what another one has computed (commands/esd/solve/cache.py). If they waited for the base, the other GPUs
    would be idle until it is done.
    """
    groups: dict[str, list[ModelRow]] = {}
    for row in rows:
        groups.setdefault(row.source or row.model, []).append(row)
    return [row for base, group in groups.items() for row in sorted(group, key=lambda row: row.model != base)]
