"""The beginning and the end of a merge: the checks before it, the judgement of its counts, the name of its output."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED, EXIT_USAGE
from gpusched.common.files import sync_directory
from gpusched.shards.merge_options import MERGE_FORMATS

from ..parts.model import Joined, MergePart, MergeTask, suffix_of
from ..parts.report import MergeRefused, count_of, first_of, shown
from .metadata import describe
from .output import MergeOutput, hash_file
from .replace import check_output, check_replacement, is_marker, marker_line, metadata_path, remove_parts


class MergeResult(NamedTuple):
    """The end of a merge: lines for people, and the exit code."""

    summary: str
    warnings: Sequence[str]
    errors: Sequence[str]
    exit_code: int


@contextmanager
def opened_output(task: MergeTask) -> Iterator[MergeOutput]:
    """Check everything that can be checked before the parts are read, and open the output."""
    form, options = suffix_of(task.output), task.options
    if form not in MERGE_FORMATS:
        why = f".{shown(form)} names no format that can be merged" if form else "a name without suffix names no format"
        hint = f"the suffix chooses it: {' '.join(f'.{name}' for name in MERGE_FORMATS)}"
        raise MergeRefused(why, where=task.output, hint=hint, exit_code=EXIT_USAGE)
    if options.key is not None and not MERGE_FORMATS[form].has_keys:
        having = ", ".join(f".{name}" for name, row in MERGE_FORMATS.items() if row.has_keys)
        raise MergeRefused(f"--key finds repeated records in {having}; .{form} has none", exit_code=EXIT_USAGE)
    check_output(task)
    _check_parts(task, form)
    if options.sum and not MERGE_FORMATS[form].has_sums:
        task.report.note(f"--sum adds nothing up in .{form}")
    with MergeOutput(task.output, sum(part.size for part in task.parts)) as out:
        yield out


def _check_parts(task: MergeTask, form: str) -> None:
    seen = {os.path.realpath(task.output): "the output", os.path.realpath(metadata_path(task.output)): "its metadata"}
    for part in task.parts:
        if (other := suffix_of(part.path)) != form:
            why = f"is .{shown(other) or '(no suffix)'}, and the output .{form}: parts and output are of one format"
            raise MergeRefused(
                why, where=part.name, hint="nothing is converted; merge each format into a file of its own"
            )
        try:
            part.stamp = _stamp(part)
            why = "" if os.path.isfile(part.path) else "is no regular file"
        except OSError as error:
            why = str(error.strerror)
        part.size = os.path.getsize(part.path) if not why else 0
        before = {seen.setdefault(name, part.path) for name in (os.path.realpath(part.path), str(part.stamp[:2]))}
        if why or (before := before - {part.path}):
            raise MergeRefused(
                why or f"is the same file as {shown(before.pop())}", where=part.name, exit_code=EXIT_USAGE
            )
    if task.missing and not task.options.allow_partial:
        lines = first_of([f"{shown(one.name)}: {one.why}" for one in task.missing], 20)
        count = f"{count_of(len(task.missing), 'part')} of {len(task.missing) + len(task.parts)} missing"
        hint = "--allow-partial merges the others, and the metadata name what is missing"
        raise MergeRefused("\n  ".join([f"{count}:", *lines]), where=task.output, hint=hint)
    if not task.parts:
        raise MergeRefused("nothing to merge", where=task.output, hint="no part exists")


def _stamp(part: MergePart) -> tuple[int, ...]:
    found = os.stat(part.path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def publish(task: MergeTask, joined: Joined, out: MergeOutput) -> MergeResult:
    """Give the output its name, and describe it beside it. Until then nothing has changed.

    The description is written first, with what it replaces: killed at any step, the next merge knows either file.
    """
    report, options, marker = task.report, task.options, f"{task.output}.incomplete"
    for part in task.parts:
        if _stamp(part) != part.stamp:
            hint = "wait until the program that writes it has ended"
            raise MergeRefused("has changed while it was read", where=part.name, hint=hint)
        with suppress(OSError):  # it could not be read before either, which is reported
            part.sha256 = part.sha256 or hash_file(part.path)
    if all(part.skipped for part in task.parts):
        raise MergeRefused("\n  ".join(["nothing of any part can be merged:", *report.errors()]), where=task.output)
    digest = out.finish()
    wrong, shorts = _judge_counts(task, joined)
    short = [
        f"{shown(one['part'])}: {count_of(one['records'], 'record')} of {count_of(one['items'], 'item')}"
        for one in shorts
    ]
    errors = [*report.errors(), *wrong, *([] if options.allow_partial else short)]
    lacking = [
        *(short if options.allow_partial else ()),
        *(f"{shown(m.name)} is missing: {m.why}" for m in task.missing),
    ]
    is_complete = not (errors or lacking)
    document = describe(task, joined, out) | {"complete": is_complete, "wrong": wrong, "short": shorts}
    document["replaces"] = check_replacement(task, digest, [*errors, *lacking])
    document["output"]["sha256"] = digest
    document["remove_parts"] = options.remove_parts and is_complete
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    out.write_beside(metadata_path(task.output), f"{text}\n")
    if not is_complete:
        out.write_beside(marker, "\n".join([marker_line(task.output), *errors, *lacking]) + "\n")
    out.commit()
    if is_complete and is_marker(marker, task.output):
        os.unlink(marker)
        sync_directory(out.directory)
    warnings, code = [*report.warnings(), *lacking], EXIT_SOME_FAILED if errors else EXIT_OK
    count = "" if joined.records is None else f"{count_of(joined.records, 'record')} of "
    summary = f"{shown(task.output)}: {count}{count_of(sum(not part.skipped for part in task.parts), 'part')}"
    if not is_complete:
        warnings += ["the parts are kept, since the output is incomplete"] if options.remove_parts else []
        summary += f", INCOMPLETE: see {shown(os.path.basename(marker))}"
    elif options.remove_parts:
        removed, errors, code = remove_parts(task, digest)
        summary += f"; {count_of(removed, 'part')} removed"
    return MergeResult(summary, warnings, errors, code)


def _judge_counts(task: MergeTask, joined: Joined) -> tuple[list[str], list[dict[str, Any]]]:
    """Return a sum that is not --expect, and the parts with fewer records than their shards have items.

    Counts that may be of something else than records are taken for counts of items once one of them is exactly that.
    """
    counted = [(part, part.shard, part.records) for part in task.parts if part.records is not None and not part.skipped]
    is_per_item = joined.per_item or any(shard and records == shard.count > 0 for _, shard, records in counted)
    more, short = 0, []
    for part, shard, records in counted if is_per_item else ():
        if shard and records < shard.count and part.name not in task.report.lost:
            row = {"part": part.name, "shard": shard.shard, "suffix": shard.suffix, "records": records}
            short.append(row | {"items": shard.count, "lacks": shard.count - records})
        more += bool(shard and records > shard.count and joined.per_item)
    if more:
        task.report.note(f"{count_of(more, 'part')} with more records than items")
    if task.options.expect in (None, joined.records):
        return [], short
    count = "no count" if joined.records is None else count_of(joined.records, "record")
    return [f"{count}, and --expect {task.options.expect:,}"], short
