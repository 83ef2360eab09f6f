"""The summary that `run` and `shard` print at their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusched.cli.options import print_json, print_page

if TYPE_CHECKING:
    from gpusched.host.queue.queue_dir import QueueDir
    from gpusched.host.store import Store


def print_summary(queue_dir: QueueDir, store: Store, code: int, *, as_json: bool) -> None:
    """Print one block for people, or one JSON document."""
    from gpusched.operations.summary import summarize_run, summary_document
    from gpusched.shards.notes import read_notes

    summary = summarize_run(queue_dir, store, code, every_failure=as_json, read_notes=read_notes)
    if as_json:
        print_json(summary_document(summary))
        return
    from gpusched.views.summary import summary_page

    print_page(summary_page(summary))
