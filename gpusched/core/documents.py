"""Turn rows of a queue into the JSON documents that gpusched writes and prints. Pure; secrets are masked here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpusched.common.quantities import AUTO_MEMORY
from gpusched.common.text import clean, mask_secrets
from gpusched.core.jobs.job import DIRTY
from gpusched.core.model import AttemptRow, ForeignUse, JobRow, JobState

METRICS_SCHEMA_VERSION = 1
_MEASURED = (
    "peak_memory_bytes",
    "peak_device_bytes",
    "mean_memory_bytes",
    "mean_utilisation",
    "idle_share",
    "energy_j",
)
_NO_ATTEMPT = AttemptRow(0, 0, 0.0, None, None, log="", error_log="")


def shown_command(command: bytes) -> str:
    """Return a command as it is shown to people: decoded with replacement, secrets masked."""
    return mask_secrets(command.decode("utf-8", "replace"))


def shown_line(command: bytes) -> str:
    """Return a command as it is shown to people, with the lines of a script joined into one."""
    text = shown_command(command)
    if "\n" not in text:
        return text
    return re.sub(r"\n\s*", "; ", re.sub(r"[ \t]*\\\n\s*", " ", text.strip()))


def job_title(job: JobRow) -> str:
    """Return a job as a sentence calls it: job 3 (prepare)."""
    return f"job {job.id} ({job.name})" if job.name else f"job {job.id}"


def parse_progress(text: str | bytes) -> dict[str, Any]:
    """Return the valid fields of a job's progress file; empty if it is no JSON object."""
    try:
        data = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    fields: dict[str, Any] = {}
    for key in ("done", "total"):
        value = data.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18:
            fields[key] = value
    for key in ("unit", "message"):
        if isinstance(data.get(key), str):
            fields[key] = data[key][:200].encode("utf-8", "replace").decode()  # half a surrogate pair is no text
    memory = data.get("memory_bytes")
    if isinstance(memory, int) and not isinstance(memory, bool) and 0 <= memory < 1 << 50:
        fields["memory_bytes"] = memory
    if isinstance(data.get("ready"), bool):
        fields["ready"] = data["ready"]
    return fields


def job_document(job: JobRow, attempts: Sequence[AttemptRow], queue_path: str) -> dict[str, Any]:
    """Return one job with its newest attempt, as in gpu_metrics.json and `status --json`."""
    last = attempts[-1] if attempts else _NO_ATTEMPT
    return {
        "id": job.id,
        "command": shown_command(job.command),
        "line": job.line,
        "name": job.name or None,
        "tags": list(job.tags),
        "prio": job.prio,
        "cwd": job.cwd.decode("utf-8", "replace"),
        "git_commit": job.git.removesuffix(DIRTY) or None,
        "git_dirty": job.git.endswith(DIRTY) if job.git else None,
        "state": job.state.value,
        **attempt_document(last, queue_path),
        "cause": job.cause or (last.outcome and last.outcome.cause) or None,
        "gpus": job.gpus,
        "items": job.items or None,
        "stated_mem_bytes": job.stated_mem_bytes if job.stated_mem_bytes > 0 else None,
        "learns_memory": job.stated_mem_bytes == AUTO_MEMORY,
        "mem_bytes": job.mem_bytes or None,
        "alone": job.alone,
        "queued_at": job.submitted_at,
        "started_at": last.started_at if attempts else None,
        "ended_at": job.ended_at,
        "wait_s": None if job.first_started_at is None else max(0.0, job.first_started_at - job.submitted_at),
        "runtime_s": sum(a.ended_at - a.started_at for a in attempts if a.ended_at is not None),
        "tries": job.tries,
        "attempts": job.attempts,
        "progress": parse_progress(last.progress),
    }


def attempt_document(attempt: AttemptRow, queue_path: str) -> dict[str, Any]:
    """Return one attempt, as in the document of its job and in `explain --json`."""
    usage, outcome = attempt.usage, attempt.outcome
    return {
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "devices": [{"uuid": d.uuid, "index": d.index, "name": d.name} for d in attempt.devices],
        "outcome": outcome and outcome.kind.value,
        "cause": (outcome and outcome.cause) or None,
        "note": (outcome and outcome.note) or None,
        "exit_code": outcome and outcome.exit_code,
        "signal": outcome and outcome.signal,
        "log": f"{queue_path}/{attempt.log}" if attempt.log else None,
        "error_log": f"{queue_path}/{attempt.error_log}" if attempt.error_log else None,
        "memory_by": None if usage.peak_device_bytes is None else usage.memory_by,
        **{name: getattr(usage, name) for name in _MEASURED},
        "foreign_use": foreign_document(usage.foreign_use),
        "max_rss_bytes": attempt.max_rss_bytes,
        "cpu_s": attempt.cpu_s,
    }


def foreign_document(use: ForeignUse) -> dict[str, Any] | None:
    """Return the processes of others beside an attempt; None where nobody knows."""
    return None if use.share is None else {"share": use.share, **asdict(use), "who": [*map(clean, use.who)]}


def metrics_head(counts: Mapping[JobState, int], totals: Mapping[str, float], now: float) -> dict[str, Any]:
    """Return gpu_metrics.json without its lists. Rates are over all of `counts`. Times in seconds."""
    total = sum(counts.values())
    succeeded, failed = counts[JobState.SUCCEEDED], counts[JobState.FAILED]
    started = totals["started_jobs"]
    return {
        "schema_version": METRICS_SCHEMA_VERSION,
        "total_jobs": total,
        "successful_jobs": succeeded,
        "failed_jobs": failed,
        "cancelled_jobs": counts[JobState.CANCELLED],
        "running_jobs": counts[JobState.RUNNING],
        "queued_jobs": counts[JobState.QUEUED] + counts[JobState.HELD],
        "success_rate": succeeded / total if total else 0.0,
        "failure_rate": failed / total if total else 0.0,
        "avg_wait_time": totals["total_wait_time"] / started if started else 0.0,
        **{name: totals[name] for name in ("total_wait_time", "total_runtime", "total_job_time", "start_time")},
        "timestamp": now,
    }
