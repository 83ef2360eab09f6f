"""The attempts of queues as a table for notebooks: a Parquet file, or a data frame of pandas or polars."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.files import write_atomically
from gpusched.common.libraries import install_command, missing, refuse_missing
from gpusched.core.documents import job_document
from gpusched.core.model import AttemptRow
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import attempt_table, job_table
from gpusched.operations.look.status import read_each
from gpusched.operations.queues import OpenQueue, open_queue, queue_name

# Column -> its type in Arrow. Named as in `status --json`; a time is a moment in UTC, the rest base units.
COLUMNS = {
    **dict.fromkeys(("queue", "name", "command", "tags", "state"), "string"),
    **dict.fromkeys(("id", "attempt", "gpus", "prio", "items", "mem_bytes", "exit_code", "signal"), "int64"),
    **dict.fromkeys(("queued_at", "started_at", "ended_at"), "timestamp"),
    **dict.fromkeys(
        ("runtime_s", "mean_memory_bytes", "mean_utilisation", "idle_share", "energy_j", "cpu_s"), "double"
    ),
    **dict.fromkeys(("peak_memory_bytes", "peak_device_bytes", "max_rss_bytes"), "int64"),
    **dict.fromkeys(("outcome", "cause", "note", "log", "devices", "git_commit"), "string"),
}


def read_rows(queue: OpenQueue, name: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each attempt, and one for each job that has had none."""
    path = queue.queue_dir.path
    for job in job_table.jobs(queue.store):
        tried: Sequence[AttemptRow | None] = attempt_table.attempts(queue.store, job.id) or [None]
        for attempt in tried:
            document = job_document(job, [attempt] if attempt else [], path)
            document |= {
                "queue": name,
                "attempt": attempt and attempt.number,
                "ended_at": attempt and attempt.ended_at,
                "runtime_s": attempt and (attempt.ended_at or queue.now) - attempt.started_at,
                "tags": ",".join(job.tags),
                "devices": ",".join(device.uuid for device in attempt.devices) if attempt else "",
            }
            yield {column: _value(document[column], kind) for column, kind in COLUMNS.items()}


def _value(value: Any, kind: str) -> Any:
    return datetime.fromtimestamp(value, timezone.utc) if kind == "timestamp" and value is not None else value


def write_parquet(known: Sequence[QueueDir], path: str) -> tuple[int, list[str]]:
    """Write the attempts of these queues; return how many rows, and a text for each queue that cannot be read."""
    refuse_missing("usage --parquet", ["pyarrow"], extra="parquet")
    import pyarrow
    from pyarrow import parquet

    parts, broken = read_each(known, lambda queue: list(read_rows(queue, queue_name(queue.queue_dir, known))))
    types = {"timestamp": pyarrow.timestamp("us", tz="UTC")}
    schema = pyarrow.schema([(name, types.get(kind) or pyarrow.type_for_alias(kind)) for name, kind in COLUMNS.items()])
    rows = [row for part in parts for row in part]
    data = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), data)
    try:
        write_atomically(path, data.getvalue())
    except OSError as error:
        text = f"the table cannot be written: {error.strerror or error}"
        raise GpuschedError(text, where=path, exit_code=EXIT_CANNOT_WORK) from None
    return len(rows), broken


def read_frame(queue_dir: QueueDir) -> Any:
    """Return the attempts of a queue as a data frame of pandas, or of polars. Raises GpuschedError without both."""
    with open_queue(queue_dir) as queue:
        rows = list(read_rows(queue, queue_dir.name))
    if not missing(["pandas"]):
        import pandas

        return pandas.DataFrame(rows, columns=list(COLUMNS))
    if not missing(["polars"]):
        import polars

        return polars.DataFrame(rows, schema=list(COLUMNS), infer_schema_length=None)
    hint = f"to install one of them: {install_command(['pandas'])}"
    raise GpuschedError("a data frame needs pandas or polars", hint=hint, exit_code=EXIT_CANNOT_WORK)
