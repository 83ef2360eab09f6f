"""One merge from its parts to its output: open, join, publish. Knows no format."""

from __future__ import annotations

import importlib
from typing import Any

from gpusched.common.errors import EXIT_CANNOT_WORK
from gpusched.shards.merge_options import MERGE_FORMATS

from .parts.model import MergeRefused, MergeTask, suffix_of
from .write.publish import MergeResult, open_output, publish


def merge(task: MergeTask) -> MergeResult:
    """Merge one output. Raises MergeRefused, and then writes nothing."""
    with open_output(task) as out:
        records = format_class(suffix_of(task.output))(task).write(out)
        return publish(task, records, out)


def format_class(suffix: str) -> Any:
    """Return the class of a format, by its row in the table. Raises MergeRefused if its library is missing."""
    row = MERGE_FORMATS[suffix]
    try:
        if row.library:
            importlib.import_module(row.library)
    except ImportError:
        why = f".{suffix} needs {row.library}"
        raise MergeRefused(why, hint=row.remedy, exit_code=EXIT_CANNOT_WORK) from None
    return getattr(importlib.import_module(f"{__package__}.formats.{row.module}"), row.class_name)
