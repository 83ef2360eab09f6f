"""Conversion between rows of the table of jobs and the values of core/jobs/job. Runs no query."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from gpusched.common.errors import stored_value
from gpusched.core.jobs.job import JobRow, JobState, Requirements


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _environment(text: str) -> tuple[tuple[bytes, bytes], ...]:
    if text == "[]":  # of most jobs
        return ()
    return tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in json.loads(text))


_JOB_FIELDS = [field.name for field in fields(JobRow)]  # named as the columns are
JOB = ", ".join(_JOB_FIELDS)
NEEDS = (
    *("cwd", "gpus", "time_limit_s", "retries", "mem_bytes", "stated_mem_bytes", "prio"),
    *("name", "tags", "gpu_model", "env", "git", "items", "cpus", "ram_bytes", "alone", "begin_at", "shape"),
    *("node", "node_tag", "over_nodes"),
)  # the columns of a job that its requirements fill
_read_needs = attrgetter(*NEEDS)
_READERS: dict[str, Callable[[Any], object]] = {
    "state": JobState,
    "avoid": lambda text: frozenset(_words(text)),
    "tags": _words,
    "env": _environment,
    "blocked": bool,
    "listed": bool,
    "alone": bool,
}
_JOB_READERS = [(_JOB_FIELDS.index(name), read) for name, read in _READERS.items()]


def needs_columns(needs: Requirements) -> dict[str, object]:
    """Return the columns NEEDS of a job with these requirements."""
    columns = dict(zip(NEEDS, _read_needs(needs), strict=True))
    columns["stated_mem_bytes"] = needs.stated_mem_bytes or needs.mem_bytes
    columns["tags"] = ",".join(needs.tags)
    env = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in needs.env]
    columns["env"] = json.dumps(env) if env else "[]"
    return columns


@stored_value()
def job_row(columns: Sequence[Any]) -> JobRow:
    """Return the job of a row of the columns JOB."""
    values = list(columns)
    for n, read in _JOB_READERS:
        values[n] = read(values[n])
    return JobRow(*values)
