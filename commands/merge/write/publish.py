"""The beginning and the end of a merge: the checks before it, the judgement of its counts, the name of its output."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusched.common.errors import EXIT_CANNOT_WORK, EXIT_OK, EXIT_SOME_FAILED, EXIT_USAGE
from gpusched.common.files import hash_file, sync_directory
from gpusched.common.text import first_few
from gpusched.shards.merge_options import MERGE_FORMATS

from ..parts.model import MergePart, MergeRefused, MergeTask, count_of, shown, suffix_of
from .metadata import describe
from .output import MergeOutput
from .replace import check_output, check_replacement, is_marker, marker_line, metadata_path

if TYPE_CHECKING:
    from gpusched.shards.plan import Shard


class MergeResult(NamedTuple):
    """The result of one merge in words; without a summary, nothing was written."""

    summary: str
    warnings: list[str]
    errors: list[str]
    code: int
    output: str = ""
    sha256: str = ""
    is_complete: bool = False


@contextmanager
def keeping_failure(task: MergeTask, results: list[MergeResult]) -> Iterator[None]:
    """Add what fails inside this context to the results: of several outputs, the others are made.

    A refusal for another reason than the parts is raised: it is about all of them.
    """
    try:
        yield
    except MergeRefused as error:
        if error.exit_code != EXIT_SOME_FAILED:
            raise
        results.append(MergeResult("", [], [str(error)], error.exit_code))
    except (OSError, MemoryError, RecursionError) as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__} {shown(error)}"
        results.append(MergeResult("", [], [f"{shown(task.output)}: {why}"], EXIT_CANNOT_WORK))


def open_output(task: MergeTask) -> MergeOutput:
    """Check everything that can be checked before the parts are read, and open the output, a context manager."""
    form = suffix_of(task.output)
    if form not in MERGE_FORMATS:
        hint = f"the suffix chooses it: {' '.join(f'.{name}' for name in MERGE_FORMATS)}"
        why = f"its suffix .{shown(form)} names no format that can be merged"
        raise MergeRefused(why, where=task.output, hint=hint, exit_code=EXIT_USAGE)
    if task.options.key is not None and not MERGE_FORMATS[form].has_keys:
        task.report.note(f"--key finds no repeated records in .{form}")
        task.options = dataclasses.replace(task.options, key=None)
    if task.options.sum and not MERGE_FORMATS[form].has_sums:
        task.report.note(f"--sum adds nothing up in .{form}")
        task.options = dataclasses.replace(task.options, sum=())
    check_output(task)
    _check_parts(task, form)
    return MergeOutput(task.output)


def _check_parts(task: MergeTask, form: str) -> None:
    beside = {"the output": task.output, "its metadata": metadata_path(task.output)}
    seen = {_stamp(path)[:2]: name for name, path in beside.items() if os.path.exists(path)}
    for part in task.parts:
        if suffix_of(part.path) != form:
            why = f"is no .{form} file as the output: nothing is converted"
            raise MergeRefused(why, where=part.name, hint="merge each format into a file of its own")
        if not os.path.isfile(part.path):
            raise MergeRefused("is no regular file", where=part.name, exit_code=EXIT_USAGE)
        part.stamp = _stamp(part.path)
        part.size = part.stamp[2]
        if (other := seen.setdefault(part.stamp[:2], part.path)) != part.path:
            raise MergeRefused(f"is the same file as {shown(other)}", where=part.name, exit_code=EXIT_USAGE)
    if task.missing and not task.options.allow_partial:
        lines = first_few([f"{shown(one.name)}: {one.skipped}" for one in task.missing], 20)
        count = f"{count_of(len(task.missing), 'part')} of {len(task.missing) + len(task.parts)} missing"
        hint = "--allow-partial merges the others, and the metadata name what is missing"
        raise MergeRefused("\n  ".join([f"{count}:", *lines]), where=task.output, hint=hint)
    if not task.parts:
        raise MergeRefused("nothing to merge", where=task.output, hint="no part exists")


def _stamp(path: str) -> tuple[int, ...]:
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def publish(task: MergeTask, count: int | None, out: MergeOutput) -> MergeResult:
    """Give the output its name, and describe it beside it; one that is incomplete is marked before.

    Until it has its name nothing has changed. Killed at any step and started again, a merge makes the same file.
    """
    report, options, marker = task.report, task.options, f"{task.output}.incomplete"
    if all(part.skipped for part in task.parts):
        raise MergeRefused("\n  ".join(["nothing of any part can be merged:", *report.errors()]), where=task.output)
    digest = _hash_all(task, out)
    records = "" if count is None else count_of(count, "record")
    short, wrong = _judge_counts(task, is_expected=options.expect is not None and options.expect == count)
    if options.expect not in (None, count):
        wrong.insert(0, f"{records or 'no count'}, and --expect {options.expect:,}")
    errors, lacking = report.errors() + wrong, [f"{shown(one.name)} is missing: {one.skipped}" for one in task.missing]
    (lacking if options.allow_partial else errors).extend(row.pop("text") for row in short)
    is_complete = not (errors or lacking)
    check_replacement(task, digest, [*errors, *lacking])
    document = describe(task, count, out, digest) | {"complete": is_complete, "wrong": wrong, "short": short}
    document["remove_parts"] = options.remove_parts and is_complete
    if not is_complete:
        out.write_beside(marker, "\n".join([marker_line(task.output), *errors, *lacking]) + "\n")
    out.commit()
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    out.write_beside(metadata_path(task.output), f"{text}\n")
    if is_complete and is_marker(marker, task.output):
        os.unlink(marker)
        sync_directory(out.directory)
    parts = count_of(sum(not part.skipped for part in task.parts), "part")
    summary = f"{shown(task.output)}: {records} of {parts}" if records else f"{shown(task.output)}: {parts}"
    if not is_complete:
        summary += f", INCOMPLETE: see {shown(os.path.basename(marker))}"
        lacking += ["the parts are kept, since the output is incomplete"] if options.remove_parts else []
    code = EXIT_SOME_FAILED if errors else EXIT_OK
    if is_complete and options.remove_parts:
        errors = _remove_parts(task)
        code = EXIT_CANNOT_WORK if errors else EXIT_OK
    result = MergeResult(summary, [*report.warnings(), *lacking], errors, code)
    return result._replace(output=task.output, sha256=digest, is_complete=is_complete)


def _remove_parts(task: MergeTask) -> list[str]:
    """Remove the parts, once the output is whole on disk. Return what cannot be removed, or has changed since."""
    errors = []
    for part in task.parts:
        try:
            if _stamp(part.path) == part.stamp:
                os.unlink(part.path)
            else:
                errors.append(f"{shown(part.name)} has changed since it was merged; it is kept")
        except OSError as error:
            errors.append(f"{shown(part.name)} is merged, and cannot be removed: {error.strerror}")
    return errors


def _hash_all(task: MergeTask, out: MergeOutput) -> str:
    """Return the SHA-256 of the output, and keep those of the parts, which are refused if they have changed."""
    out.finish()
    with ThreadPoolExecutor() as pool:
        digest, *hashes = pool.map(hash_file, [out.temporary, *(part.path for part in task.parts)])
    for part, sha256 in zip(task.parts, hashes, strict=True):
        part.sha256 = sha256
        if _stamp(part.path) != part.stamp:
            raise MergeRefused("has changed while it was read", where=part.name, hint="wait until its writer has ended")
    return digest


def _judge_counts(task: MergeTask, *, is_expected: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the parts with fewer records than items, and what is wrong with those of shards with several attempts."""
    short, wrong, more = list[dict[str, Any]](), list[str](), 0
    for part, shard, records in _count_items(task):
        items, attempts = count_of(shard.count, "item"), part.run.attempts if part.run else 1
        has = "no count of records" if records is None else count_of(records, "record")
        is_older = part.run is not None and attempts > 1 and part.run.is_before(part.stamp[3] / 1e9)
        text = f"{shown(part.name)}: {has} of {items}"
        text += ", written before the attempt that succeeded" if is_older else ""
        part.is_short = records is not None and records < shard.count
        more += records is not None and records > shard.count
        if records is not None and part.is_short and part.name not in task.report.lost:
            row = {"part": part.name, "shard": shard.shard, "suffix": shard.suffix, "records": records}
            short.append(row | {"items": shard.count, "lacks": shard.count - records, "text": text})
        elif not is_expected and (is_older if records is None else records > shard.count and attempts > 1):
            why = f"and its shard had {attempts} attempts: a script that appends leaves items twice"
            wrong.append(f"{text}, {why}; remove the file and use --retry-failed")
        elif is_older:
            task.report.note(text)
    if more:
        task.report.note(f"{count_of(more, 'part')} with more records than items")
    return short, wrong


def _count_items(task: MergeTask) -> Iterator[tuple[MergePart, Shard, int | None]]:
    """Yield each part with its shard and the number of its records, as far as they stand for items.

    Lengths in a dict may be of something else: they stand for items once one of them is exactly their number.
    """
    parts = [(part, part.shard) for part in task.parts if part.shard and not part.skipped]
    of_items = {key for part, shard in parts for key, rows in part.rows.items() if rows == shard.count and rows}
    has_rows = any(any(part.rows.values()) for part, _ in parts)
    for part, shard in parts:
        records, rows = part.records, [part.rows.get(key, 0) for key in of_items]
        if not task.counts_items and rows:
            records = min(rows) if min(rows) < shard.count else max(rows)
        elif not task.counts_items and any(part.rows.values()):
            records = records if (records or 0) > shard.count else None
        elif not task.counts_items:
            records = 0 if has_rows else None
        yield part, shard, records
