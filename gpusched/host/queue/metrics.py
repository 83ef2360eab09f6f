"""Writing gpu_metrics.json from the store, job by job, replaced as a whole. Decides nothing about its content."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from gpusched.common.files import replacing
from gpusched.core.documents import job_document, metrics_head
from gpusched.host.store import Store, attempt_table, job_table, queue_totals

NEWEST = 1000  # jobs listed while the queue is worked on; all of them at the end


def write(
    path: str,
    store: Store,
    devices: Sequence[dict[str, Any]],
    queue_path: str,
    now: float,
    *,
    every_job: bool,
) -> None:
    """Replace the metrics at `path`. Raises OSError when the disk is full; the old file then stays."""
    head = metrics_head(job_table.current_counts(store), queue_totals.times(store), now)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with replacing(path) as temporary, os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(json.dumps({**head, "devices": list(devices)}, indent=1)[:-2])
        file.write(',\n "jobs": [')
        separator = "\n  "
        for job in job_table.jobs(store, newest=None if every_job else NEWEST):
            file.write(separator + json.dumps(job_document(job, attempt_table.attempts(store, job.id), queue_path)))
            separator = ",\n  "
        file.write("\n ]\n}\n")
        file.flush()
        os.fsync(file.fileno())
