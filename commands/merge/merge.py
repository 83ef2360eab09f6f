"""One merge from its parts to its output: checked, written, judged, named. Knows no format's inside."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from . import metadata
from .blocks import share
from .counts import judge_counts
from .existing import (
    Removal,
    check_name,
    check_place,
    check_replaces,
    finish_removal,
    is_marker,
    marker_line,
    path_beside,
    read_document,
    remove_parts,
    stored_name,
)
from .hashing import hash_file
from .output import Output, reporter, sweep, sync_directory, write_small
from .parts import ItemOrder, Merged, Missing, Options, Part
from .records import merge_records
from .trouble import EXIT_CANNOT_WORK, EXIT_INCOMPLETE, EXIT_OK, EXIT_USAGE, Refused, Told, clean, number

FORMATS = ("jsonl", "json", "csv", "tsv", "txt", "parquet", "npz", "npy", "safetensors", "pt")
WITH_SUMS = ("json", "npz", "safetensors", "pt")
WITH_KEYS = ("jsonl", "json", "csv", "tsv", "parquet")
_NEEDS = {
    "parquet": ("columns", "pyarrow", "pip install 'gpusched-lab[merge]'"),
    "npy": ("arrays", "numpy", "pip install 'gpusched-lab[merge]'"),
    "npz": ("arrays", "numpy", "pip install 'gpusched-lab[merge]'"),
    "safetensors": ("tensors", "", ""),
    "pt": ("pickled", "torch", "install PyTorch, as the script that wrote them has it"),
}


@dataclass
class Job:
    """What is merged into one output."""

    output: str
    parts: list[Part]
    options: Options
    order: ItemOrder | None = None
    missing: list[Missing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    described: str = "the parts one after the other, as given"


@dataclass(frozen=True)
class Result:
    """What became of it: lines for people, and the exit code."""

    said: str
    warnings: Sequence[str]
    errors: Sequence[str]
    exit_code: int


def format_of(path: str) -> str:
    return os.path.splitext(path)[1].lower().removeprefix(".")


def merge(job: Job) -> Result:
    """Merge one output. Refused where nothing is written."""
    form = _check(job)
    if not job.options.overwrite:
        done = finish_removal(job.output, job.parts, asked=job.options.remove_parts)
        if done is not None:
            said, removal = done
            return Result(said, (), removal.errors, removal.exit_code)
    if job.missing and not job.options.allow_partial:
        _refuse_missing(job)
    if not job.parts:
        raise Refused("nothing to merge", where=job.output, hint="no part is there")
    told = Told()
    for note in job.notes:
        told.note(note)
    if job.options.sums and form not in WITH_SUMS:
        told.note(f"--sum adds nothing up in .{form}")
    for part in job.parts:
        if form in ("jsonl", "txt") and os.path.getsize(part.path) == 0:
            told.note(f"{clean(part.name)} is empty: it is skipped")
    before = {part.path: _stamp(part) for part in job.parts}
    with Output(job.output, reporter(sum(part.size for part in job.parts))) as out:
        merged = _run(form, job, out, told)
        _look_at_parts(job.parts, before)
        if all(part.skipped for part in job.parts):
            raise Refused("nothing of any part can be merged:\n  " + "\n  ".join(told.lines()), where=job.output)
        judge_counts(job.parts, merged, job.options, told)
        digest = out.finish()
        return _name_it(job, form, merged, told, out, digest)


# ---- before ----------------------------------------------------------------------------------------


def _check(job: Job) -> str:
    form, options = format_of(job.output), job.options
    if form not in FORMATS:
        raise Refused(
            f"{f'.{clean(form)}' if form else 'a name without suffix'} says no format that can be merged",
            where=job.output,
            hint=f"the suffix chooses it: {' '.join(f'.{known}' for known in FORMATS)}",
            exit_code=EXIT_USAGE,
        )
    if options.key is not None and form not in WITH_KEYS:
        raise Refused(
            f"--key finds repeated records in .{', .'.join(WITH_KEYS)}; .{form} has none", exit_code=EXIT_USAGE
        )
    check_place(job.output)
    marker = _marker(job.output)
    check_name(marker)
    if os.path.lexists(marker) and not is_marker(marker, job.output):
        raise Refused("exists, and no merge has made it", where=marker, hint="move it away: a merge writes there")
    document = path_beside(job.output)
    check_name(document)
    if os.path.lexists(document) and not (read_document(document) or job.options.overwrite):
        raise Refused("exists, and is no merge's metadata", where=document, hint="--overwrite replaces it")
    own = {os.path.realpath(job.output): "the output itself", os.path.realpath(document): "the output's metadata"}
    seen: dict[tuple[int, int], str] = {}
    for part in job.parts:
        other = format_of(part.path)
        if (real := os.path.realpath(part.path)) in own:
            raise Refused(f"is {own[real]}, and named as a part", where=part.name, exit_code=EXIT_USAGE)
        if other != form:
            raise Refused(
                f"is .{clean(other) or '(no suffix)'}, and the output .{form}: parts and output are of one format",
                where=part.name,
                hint="nothing is converted; merge each format into a file of its own",
            )
        try:
            found = os.stat(part.path)
        except OSError as error:
            raise Refused(f"{error.strerror}", where=part.name, exit_code=EXIT_USAGE) from None
        identity = (found.st_dev, found.st_ino)
        if not os.path.isfile(part.path):
            raise Refused("is no regular file", where=part.name, exit_code=EXIT_USAGE)
        if identity in seen:
            raise Refused(f"is the same file as {clean(seen[identity])}", where=part.name, exit_code=EXIT_USAGE)
        seen[identity] = part.name
    return form


def _refuse_missing(job: Job) -> None:
    lines = [f"{clean(m.suffix or f'shard {m.shard}')}: {m.why}" for m in job.missing[:20]]
    lines += [f"and {len(job.missing) - 20} more"] if len(job.missing) > 20 else []
    raise Refused(
        f"{number(len(job.missing), 'part')} of {len(job.missing) + len(job.parts)} missing:\n  " + "\n  ".join(lines),
        where=job.output,
        hint="--allow-partial merges what is there, and its metadata says what is missing",
    )


def _stamp(part: Part) -> tuple[int, int, int]:
    found = os.stat(part.path)
    part.size = found.st_size
    return found.st_ino, found.st_size, found.st_mtime_ns


def _look_at_parts(parts: Sequence[Part], before: dict[str, tuple[int, int, int]]) -> None:
    for part in parts:
        if _stamp(part) != before[part.path]:
            raise Refused("has changed while it was read", where=part.name, hint="wait until what writes it has ended")
        if not part.sha256:
            try:
                part.sha256 = hash_file(part.path)[1].hexdigest()
            except OSError:  # it could not be read before either, which was told
                pass


# ---- the work --------------------------------------------------------------------------------------


def _run(form: str, job: Job, out: Output, told: Told) -> Merged:
    if form in _NEEDS:
        module, library, remedy = _NEEDS[form]
        try:
            if library:
                importlib.import_module(library)
        except ImportError:
            raise Refused(f".{form} needs {library}", hint=remedy, exit_code=EXIT_CANNOT_WORK) from None
        work: Callable[..., Merged] = getattr(importlib.import_module(f".{module}", __package__), f"merge_{form}")
        return work(job.parts, out, job.order, job.options, told)
    return _run_text(form, job, out, told)


def _run_text(form: str, job: Job, out: Output, told: Told) -> Merged:
    parts, order, options = job.parts, job.order, job.options
    if form == "jsonl":
        from .lines import JsonLines

        lines = JsonLines(options, told, share(len(parts)))
        return Merged(merge_records(lines, parts, out, order, options, told, lambda part: lines.copy(part, out)))
    if form == "txt":
        from .lines import TextLines

        text = TextLines(share(len(parts)))
        return Merged(merge_records(text, parts, out, order, options, told, lambda part: text.copy(part, out)))
    if form == "json":
        from .jsonarray import JsonDocuments, merge_objects

        if options.sums:
            return merge_objects(parts, out, order, options, told)
        documents = JsonDocuments(options, told, share(len(parts)))
        written = merge_records(documents, parts, out, order, options, told)
        documents.check_kinds()
        return Merged(written, per_item=not documents.objects)
    from .tables import Tables

    tables = Tables(parts, "," if form == "csv" else "\t", options, told)
    return Merged(merge_records(tables, parts, out, order, options, told))


# ---- after -----------------------------------------------------------------------------------------


def _name_it(job: Job, form: str, merged: Merged, told: Told, out: Output, digest: str) -> Result:
    """Give the output its name, and say beside it what it is. Until then nothing has changed.

    What is said comes first, with what stands there now: killed at any step, the next merge knows either file as ours.
    """
    beside, marker = path_beside(job.output), _marker(job.output)
    short = [str(one) for one in told.short]
    failed = bool(told.lost or told.wrong or (short and not job.options.allow_partial))
    complete = not (failed or short or job.missing)
    removes = job.options.remove_parts and complete
    errors = [*told.lines(), *([] if job.options.allow_partial else short)]
    missing = [f"{clean(m.suffix or f'shard {m.shard}')} is missing: {m.why}" for m in job.missing]
    lacking = [*(short if job.options.allow_partial else []), *missing]
    wrong = [*errors, *lacking]
    replaces = check_replaces(
        job.output, read_document(beside), job.parts, digest, wrong, overwrite=job.options.overwrite
    )
    document = metadata.document(
        form=form,
        output={"name": stored_name(out.name), "bytes": out.size, "sha256": digest},
        parts=job.parts,
        missing=job.missing,
        told=told,
        records=merged.records,
        expected=job.options.expect,
        order="the parts one after the other, in their shards' order" if told.unordered else job.described,
        complete=complete,
        removed=removes,
        replaces=replaces,
    )
    write_small(beside, metadata.text(document))
    if not complete:
        write_small(marker, "\n".join([marker_line(job.output), *wrong]) + "\n")
    out.commit()
    if complete and is_marker(marker, job.output):
        os.unlink(marker)
        sync_directory(out.directory)
    sweep(out.directory, os.path.basename(marker))
    removal = remove_parts(job.output, document, job.parts) if removes else None
    warnings = [*told.warnings(), *lacking]
    if job.options.remove_parts and not complete:
        warnings.append("the parts are kept, since the output is incomplete")
    said = _said(job, merged.records, removal, complete=complete)
    if removal is not None:
        return Result(said, warnings, removal.errors, removal.exit_code)
    return Result(said, warnings, errors, EXIT_INCOMPLETE if failed else EXIT_OK)


def _marker(output: str) -> str:
    return f"{output}.incomplete"


def _said(job: Job, records: int | None, removal: Removal | None, *, complete: bool) -> str:
    """The last line of a merge that has written."""
    count = "" if records is None else f"{number(records, 'record')} of "
    said = f"{clean(job.output)}: {count}{number(sum(not part.skipped for part in job.parts), 'part')}"
    if removal is not None:
        said += f"; {number(removal.removed, 'part')} removed"
    return said if complete else f"{said}, INCOMPLETE: see {clean(os.path.basename(_marker(job.output)))}"
