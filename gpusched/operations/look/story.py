"""Reading the story of a queue: its jobs, its samples, what was used, and its report as a page. Changes no queue."""

from __future__ import annotations

from gpusched.common.files import write_atomically
from gpusched.common.text import mask_secrets, without_escapes
from gpusched.core.model import AttemptRow
from gpusched.host.attempts.reaper import log_tail
from gpusched.host.queue import samples
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import attempt_table, job_table
from gpusched.operations.look.status import read_queue
from gpusched.operations.look.usage import read_usage
from gpusched.operations.queues import open_queue
from gpusched.views.failures import group_failures
from gpusched.views.story.page import render
from gpusched.views.story.values import QueueStory

READ_JOBS = 20_000  # the newest ones
SHOWN_FAILURES = 50  # groups
LAST_LINES = 12  # of a log
LINE_LENGTH = 500


def read_story(queue_dir: QueueDir) -> QueueStory:
    """Return all that a queue did so far. Raises GpuschedError if it cannot be read."""
    report = read_queue(queue_dir)
    (by_tag, together), _ = read_usage([queue_dir], "tag")
    (by_device, _), _ = read_usage([queue_dir], "device")
    stretches = samples.read(queue_dir.samples)
    with open_queue(queue_dir) as queue:
        newest = sorted(job_table.jobs(queue.store, newest=READ_JOBS), key=lambda job: (job.position, job.id))
        jobs = [(job, attempt_table.attempts(queue.store, job.id)) for job in newest]
        is_over = queue.dispatcher.pid is None and not any(attempt_table.running(queue.store))
        now = queue.now
    known = [each.ended_at for each in stretches] + [each.ended_at for each in report.starts]
    begins = [job.submitted_at for job, _ in jobs] + [each.began_at for each in stretches[:1]]
    return QueueStory(
        report,
        began_at=min(begins, default=now),
        ended_at=max(known, default=now) if is_over else now,
        jobs=jobs,
        stretches=stretches,
        by_tag=by_tag,
        by_device=by_device,
        together=together,
        failures=[
            (group, read_last_lines(queue_dir, group.last)) for group in group_failures(report.failed)[:SHOWN_FAILURES]
        ],
    )


def read_last_lines(queue_dir: QueueDir, attempt: AttemptRow | None, number: int = LAST_LINES) -> list[str]:
    """Return the last `number` lines of what an attempt wrote, without secrets and escape sequences."""
    if attempt is None or not attempt.log:
        return []
    text = log_tail(f"{queue_dir.path}/{attempt.error_log or attempt.log}").decode("utf-8", "replace")
    lines = [line.rpartition("\r")[2] for line in without_escapes(text).replace("\r\n", "\n").rstrip().split("\n")]
    return [mask_secrets(line)[:LINE_LENGTH] for line in lines[-number:]]


def write_report(queue_dir: QueueDir, path: str = "") -> str:
    """Write the report of a queue to a file, or into its directory, and return its path. Raises OSError."""
    path = path or f"{queue_dir.path}/report.html"
    write_atomically(path, render(read_story(queue_dir)).encode("utf-8", "replace"))
    return path
