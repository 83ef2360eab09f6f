"""Parquet: columns by name, their types promoted where no value changes. Holds all rows only to change their order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from ..join.records import NO_KEY, KeyFilter, note_lacking
from ..parts.model import MergePart, MergeRefused, MergeReport, MergeTask, PartUnreadable, reading, shown
from ..write.output import MergeOutput

BATCH_BYTES = 1 << 20
GROUP_BYTES = 1 << 24
BATCH_ROWS = 1 << 12  # few enough that rows which are larger than the first ones do no harm

Rows = tuple[str, int, Any]  # part, its rows before this table, table


class ParquetTables:
    """The rows of .parquet parts."""

    def __init__(self, task: MergeTask) -> None:
        self.task, self.report, self.key = task, task.report, task.options.key
        self._schemas: list[tuple[MergePart, Any]] = []

    def write(self, out: MergeOutput) -> int | None:
        """Write the rows of all parts that can be read."""
        rowless: list[tuple[MergePart, Any]] = []
        for part in self.task.parts:
            with reading(part, self.report, "Parquet file"):
                file = _open(part)
                if file.metadata.num_rows == 0:
                    rowless.append((part, file.schema_arrow))
                    continue
                if self.key is not None and self.key not in file.schema_arrow.names:
                    raise PartUnreadable(NO_KEY)
                self._schemas.append((part, file.schema_arrow))
        for part, _ in rowless:  # it decides nothing, unless there are no others
            part.records = 0
        self._schemas = self._schemas or rowless[:1]
        if not self._schemas:
            return None
        self._plain_categories()
        schema = self._union()
        rows, held = 0, [schema.empty_table()]
        with pq.ParquetWriter(out.file, schema) as writer:
            for table in self._chosen(schema):
                held.append(table)
                rows += table.num_rows
                if sum(one.nbytes for one in held) > GROUP_BYTES:
                    writer.write_table(pa.concat_tables(held))
                    held.clear()
            if held:
                writer.write_table(pa.concat_tables(held))
        return rows

    def _plain_categories(self) -> None:
        """Take categories for plain values where they have an order, or not all parts have the same type of them."""
        for name in {
            field.name: None for _, schema in self._schemas for field in schema if types.is_dictionary(field.type)
        }:
            kinds = set(_types(name, (schema for _, schema in self._schemas)))
            if len(kinds) == 1 and not next(iter(kinds)).ordered:
                continue
            why = "have an order" if len(kinds) == 1 else "differ from part to part"
            self.report.note(f"column {shown(name)!r}: its categories {why}, and become plain values")
            for n, (part, schema) in enumerate(self._schemas):
                at = schema.get_field_index(name)
                if at >= 0 and types.is_dictionary(schema.field(at).type):
                    plain = schema.field(at).with_type(schema.field(at).type.value_type)
                    self._schemas[n] = part, schema.set(at, plain).remove_metadata()

    def _union(self) -> Any:
        """Return all columns in the order in which they come, each in a type that holds the values of all parts."""
        _, union = self._schemas[0]
        texts = union.metadata
        for part, schema in self._schemas:
            try:
                union = widened(union, schema, promote=self.task.options.promote)
            except (pa.ArrowException, ValueError) as error:
                hint = "write that column alike in all parts, or leave this one out"
                if type(error) is ValueError:
                    hint += "; --promote joins both where no value changes"
                raise MergeRefused(shown(error), where=part.name, hint=hint) from None
        for number, column in enumerate(union):
            if any(kind != column.type for kind in _types(column.name, (schema for _, schema in self._schemas))):
                self.report.note(f"column {shown(column.name)!r} is widened to {shown(column.type)}")
            lacking = [part.name for part, schema in self._schemas if schema.get_field_index(column.name) < 0]
            note_lacking(self.report, column.name, lacking, "null")
            union = union.set(number, column.with_nullable(True)) if lacking else union
        if any(schema.metadata != texts for _, schema in self._schemas):
            self.report.note("the parts' schema metadata differ (those of pandas, say): the output has none")
            union = union.remove_metadata()
        return union

    def _rows(self, schema: Any, report: MergeReport) -> Iterator[Rows]:
        """Yield all rows that can be read, in the order of the items if the parts allow it."""
        tables = self._part_by_part(schema, report)
        if self.task.order is None:
            yield from tables
            return
        whole = pa.concat_tables([schema.empty_table(), *(table for _, _, table in tables)])
        places = self.task.places("", self.task.parts, [part.records for part in self.task.parts])
        yield "all parts together", 0, whole if places is None else whole.take(pa.array(places, pa.int64()))

    def _part_by_part(self, schema: Any, report: MergeReport) -> Iterator[Rows]:
        for part, _ in self._schemas:
            part.records = 0
            with reading(part, report, "Parquet file"):
                for batch in _batches(_open(part)):
                    yield part.name, part.records, _under(schema, pa.Table.from_batches([batch]), part)
                    part.records += batch.num_rows

    def _chosen(self, schema: Any) -> Iterator[Any]:
        """Yield the rows without those that repeat a key, each at its own place."""
        if (key := self.key) is None:
            yield from (table for _, _, table in self._rows(schema, self.report))
            return
        keys = KeyFilter(
            self.task, lambda: (one for _, _, table in self._rows(schema, MergeReport()) for one in _keys(table[key]))
        )
        for name, before, table in self._rows(schema, self.report):
            rows = enumerate(_keys(table[key]), before + 1)
            yield table.filter(pa.array([keys.takes(own, name, f"row {row}") for row, own in rows], pa.bool_()))
        keys.close()


def _open(part: MergePart) -> Any:
    # Not mapped and not read ahead: memory stays that of a batch. By bytes: pyarrow takes no name but UTF-8.
    source = pa.OSFile(os.fsencode(part.path))
    return pq.ParquetFile(source, memory_map=False, pre_buffer=False, buffer_size=1 << 16)


def _batches(file: Any) -> Any:
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    row_bytes = max([1, *(group.total_byte_size // max(group.num_rows, 1) for group in groups)])
    return file.iter_batches(batch_size=max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes)))


def _under(schema: Any, table: Any, part: MergePart) -> Any:
    """Return the rows of a table under the columns of `schema`; columns that it lacks are null."""
    try:
        for at, field in enumerate(table.schema):
            kind = schema.field(field.name).type
            if types.is_dictionary(field.type) and not types.is_dictionary(kind):
                table = table.set_column(at, field.name, table[at].cast(field.type.value_type))
            elif not _is_exact(field.type, kind):
                table = table.set_column(at, field.name, _promoted(table[at], kind, field.name, part))
        return pa.concat_tables([schema.empty_table(), table], promote_options="permissive").cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise MergeRefused(f"does not fit into the types of all parts: {error}", where=part.name) from None


def _promoted(column: Any, kind: Any, name: str, part: MergePart) -> Any:
    """Return a column in another type. Raises MergeRefused for a value that it would change."""

    def changes(some: Any) -> bool:
        try:
            return not some.cast(kind, safe=True).cast(some.type, safe=True).equals(some)
        except (pa.ArrowException, ValueError):
            return True

    if changes(column):
        row = next((row for row in range(len(column)) if changes(column.slice(row, 1))), 0)
        value = shown(column[row].as_py(), 60)
        why = f"column {shown(name)!r}, row {(part.records or 0) + row + 1}: {value} is not exact in {kind}"
        raise MergeRefused(why, where=part.name, hint="write that column alike in all parts")
    return column.cast(kind, safe=True)


def widened(one: Any, other: Any, *, promote: bool = False) -> Any:
    """Return the columns of two schemas in types that hold every value exactly. ValueError, ArrowException if none.

    With `promote`, of types that may: each value is then compared.
    """
    merged = pa.unify_schemas([one, other], promote_options="permissive")
    for column in merged:
        kinds = _types(column.name, (other, one))
        if not promote and not all(_is_exact(kind, column.type) for kind in kinds):
            which = ", and ".join(map(str, kinds))
            raise ValueError(f"column {column.name!r} is {which} in others: no type holds both exactly")
    return merged


def _types(name: str, schemas: Iterable[Any]) -> list[Any]:
    return [schema.field(name).type for schema in schemas if schema.get_field_index(name) >= 0]


def _is_exact(kind: Any, merged: Any) -> bool:
    """Return True if a promotion by pyarrow changes no value: of 64-bit integers and decimals to floats it might."""
    if types.is_floating(merged):
        return bool(types.is_floating(kind) or types.is_null(kind) or (types.is_integer(kind) and kind.bit_width < 64))
    if types.is_struct(kind):
        return all(_is_exact(field.type, merged.field(field.name).type) for field in kind)
    inner = [name for name in ("key_type", "item_type", "value_type") if hasattr(kind, name)]
    is_text_kept = not (types.is_string(kind) and types.is_binary(merged))
    return is_text_kept and all(_is_exact(getattr(kind, name), getattr(merged, name)) for name in inner)


def _keys(column: Any) -> list[bytes]:
    """Return the identity of each row: its value as text."""
    try:
        texts = column.cast(pa.string()).to_pylist()
    except (pa.ArrowException, ValueError):
        raise MergeRefused(f"no repeated rows can be found by a column of {shown(column.type)}") from None
    return [b"null" if text is None else text.encode() for text in texts]
