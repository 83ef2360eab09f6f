"""The summary that the verbs that run jobs print at their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusched.cli.options import print_json, print_page

if TYPE_CHECKING:
    from gpusched.core.jobs.group_summary import GroupDetails
    from gpusched.operations.run import Queue


def print_summary(queue: Queue, code: int, *, as_json: bool, details: GroupDetails | None = None) -> None:
    """Print one block for people, or one JSON document. `details`: results of a feature."""
    from gpusched.operations.summary import summarize_run, summary_document

    summary = summarize_run(queue.queue_dir, queue.store, code, every_failure=as_json, details=details)
    if as_json:
        print_json(summary_document(summary))
        return
    from gpusched.views.summary import summary_page

    print_page(summary_page(summary))
