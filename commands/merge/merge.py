"""Merges from their parts to their outputs: open, join, publish. Knows no format."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from gpusched.common.libraries import refuse_missing
from gpusched.shards.merge_options import MERGE_FORMATS

from .parts.model import MergeTask, check_order, suffix_of
from .write.output import MergeOutput
from .write.publish import MergeResult, keeping_failure, open_output, publish


def merge(tasks: Sequence[MergeTask]) -> list[MergeResult]:
    """Merge these outputs: all are written, then all get their names.

    Raises MergeRefused, and then publishes nothing, for anything that concerns all of them.
    """
    results: list[MergeResult] = []
    outputs: list[tuple[MergeTask, int | None, MergeOutput]] = []
    with ExitStack() as stack:
        for task in tasks:
            with keeping_failure(task, results):
                out = stack.enter_context(open_output(task))
                outputs.append((task, format_class(suffix_of(task.output))(task).write(out), out))
        check_order([task for task, _, _ in outputs])
        for task, records, out in outputs:
            with keeping_failure(task, results):
                results.append(publish(task, records, out))
    return results


def format_class(suffix: str) -> Any:
    """Return the class of a format, by its row in the table. Raises GpuschedError if its library is missing."""
    row = MERGE_FORMATS[suffix]
    refuse_missing(f"a merge of .{suffix}", [row.library] if row.library else [])
    return getattr(importlib.import_module(f"{__package__}.formats.{row.module}"), row.class_name)
