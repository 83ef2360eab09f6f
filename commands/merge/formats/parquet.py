"""Parquet: columns by name, their types promoted where no value changes. Holds all rows only to change their order."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from ..join.records import NO_KEY, KeyFilter, check_key, field_identity, note_lacking
from ..parts.model import Joined, MergePart, MergeTask, reading
from ..parts.report import MergeRefused, MergeReport, PartUnreadable, shown, too_many_open
from ..write.output import MergeOutput

BATCH_BYTES = 1 << 20
GROUP_BYTES = 1 << 24
BATCH_ROWS = 1 << 12  # few enough that rows which are larger than the first ones do no harm
GROUP_ROWS = 1 << 20


class _OpenParquet:
    """One part, read batch by batch."""

    def __init__(self, part: MergePart) -> None:
        self.part = part
        try:
            # Not mapped and not read ahead: memory stays that of a batch. By bytes: pyarrow takes no name but UTF-8.
            source = pa.OSFile(os.fsencode(part.path))
            self.file = pq.ParquetFile(source, memory_map=False, pre_buffer=False, buffer_size=1 << 16)
        except (pa.ArrowException, OSError, ValueError) as error:
            why = "is empty" if part.size == 0 else f"is no Parquet file, or cut: {shown(error, 120)}"
            raise too_many_open(error) or PartUnreadable(why) from None
        footer = self.file.metadata
        self.rows: int = footer.num_rows
        self.codec = footer.row_group(0).column(0).compression if footer.num_row_groups and footer.num_columns else ""
        size = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
        row_bytes = max(size / max(self.rows, 1), self._first_row_bytes(), 1)
        self.batch_rows = max(1, min(BATCH_ROWS, int(BATCH_BYTES / row_bytes)))

    def _first_row_bytes(self) -> float:
        """Return the size of the first rows in memory: the file stores repeated values once."""
        try:
            batch = next(self.file.iter_batches(batch_size=256))
        except (StopIteration, pa.ArrowException, OSError):  # reported when they are read
            return 0.0
        return float(batch.nbytes / max(batch.num_rows, 1))

    def tables(self, schema: Any) -> Iterator[Any]:
        """Yield all rows under the columns of `schema`. PartUnreadable where they cannot be read on."""
        self.part.records = 0
        try:
            for batch in self.file.iter_batches(batch_size=self.batch_rows):
                self.part.records += batch.num_rows
                yield _with_columns(pa.Table.from_batches([batch]), schema, self.part)
        except (pa.ArrowException, OSError) as error:
            row = self.part.records + 1
            raise PartUnreadable(f"is damaged: from row {row} on it is left out: {shown(error, 120)}") from None


class ParquetTables:
    """The rows of .parquet parts."""

    def __init__(self, task: MergeTask) -> None:
        self.task = task
        self.report, self.key = task.report, task.options.key
        self._parts: list[_OpenParquet] = []

    def write(self, out: MergeOutput) -> Joined:
        """Write the rows of all parts that can be read."""
        for part in self.task.parts:
            with reading(part, self.report):
                self._parts.append(_OpenParquet(part))
        if not self._parts:
            return Joined(None)
        schema = self._union()
        check_key(self.key, schema.names)
        for one in list(self._parts) if self.key is not None else ():
            with reading(one.part, self.report):
                if one.rows and self.key not in one.file.schema_arrow.names:
                    self._parts.remove(one)  # it may have rows that others have too
                    raise PartUnreadable(NO_KEY)
        codec = next((one.codec for one in self._parts if one.codec), "SNAPPY").replace("UNCOMPRESSED", "NONE")
        rows = 0
        with out.file() as file, pq.ParquetWriter(file, schema, compression=codec) as writer:
            for table in _row_groups(self._chosen(schema)):
                writer.write_table(table, row_group_size=GROUP_ROWS)
                rows += table.num_rows
                del table  # else it would stay until the next group is whole
        return Joined(rows)

    def _union(self) -> Any:
        """Return all columns in the order in which they come, each in a type that holds the values of all parts."""
        columns: dict[str, tuple[Any, MergePart]] = {}
        schemas = [(one.part, one.file.schema_arrow) for one in self._parts]
        for part, schema in schemas:
            if len({*schema.names}) < len(schema.names):
                raise MergeRefused("names a column twice", where=part.name)
            for column in schema:
                before, first = columns.get(column.name, (column, part))
                merged, name = promoted(before, column), shown(column.name)
                if merged is None:
                    why = f"column {name!r} is {shown(column.type)}, and {shown(before.type)} in {shown(first.name)}"
                    hint = "write that column alike in all parts, or leave this one out"
                    raise MergeRefused(f"{why}: no type holds both exactly", where=part.name, hint=hint)
                if not column.type == merged.type == before.type:
                    self.report.note(f"column {name!r} is widened to {shown(merged.type)}")
                columns[column.name] = merged, first if merged.type == before.type else part
        for name, (column, first) in columns.items():
            if lacking := [part for part, schema in schemas if name not in schema.names]:
                note_lacking(self.task, name, lacking, len(schemas), "null")
                columns[name] = column.with_nullable(True), first
        texts = schemas[0][1].metadata
        if any(schema.metadata != texts for _, schema in schemas):
            self.report.note("the parts' schema metadata differ (those of pandas, say): the output has none")
            texts = None
        return pa.schema([column for column, _ in columns.values()], metadata=texts)

    def _tables(self, schema: Any, report: MergeReport) -> Iterator[tuple[Any, Sequence[int]]]:
        """Yield all rows that can be read, in the order of the items if the parts allow it, with their numbers.

        The number of a row is that where part stands after part.
        """
        order, parts = self.task.order, [one.part for one in self._parts]
        if order is None or not order.fits(parts, [one.rows for one in self._parts]):
            if order is not None:
                report.note_order()
            yield from self._one_after_the_other(schema, report)
            return
        tables, count = [schema.empty_table()], 0
        found = array("q", [-1]) * sum(one.rows for one in self._parts)  # where each row stands in the tables
        for table, numbers in self._one_after_the_other(schema, report):
            tables.append(table)
            found[numbers[0] : numbers[-1] + 1] = array("q", range(count, count + table.num_rows))
            count += table.num_rows
        kept = [number for number in order.places(parts) if found[number] >= 0]
        yield pa.concat_tables(tables).take(pa.array((found[number] for number in kept), pa.int64())), kept

    def _one_after_the_other(self, schema: Any, report: MergeReport) -> Iterator[tuple[Any, Sequence[int]]]:
        first = 0
        for one in self._parts:
            at = first
            with reading(one.part, report):
                for table in one.tables(schema):
                    yield table, range(at, at + table.num_rows)
                    at += table.num_rows
            first += one.rows

    def _chosen(self, schema: Any) -> Iterator[Any]:
        """Yield the rows without those that repeat a key, each at its own place."""
        if self.key is None:
            yield from (table for table, _ in self._tables(schema, self.report))
            return
        key_column, own = self.key, [(one.part, one.rows) for one in self._parts]
        all_tables = self._tables
        keys = KeyFilter(
            self.task, lambda: (k for t, _ in all_tables(schema, MergeReport()) for k in _keys(t[key_column]))
        )
        for table, numbers in all_tables(schema, self.report):
            mask = []
            for key, number in zip(_keys(table[key_column]), numbers, strict=True):
                mask.append(keys.takes(key))
                if not mask[-1]:
                    keys.drop(key, _place(own, number))
            yield table.filter(pa.array(mask, pa.bool_()))
        keys.close()


def _place(parts: Sequence[tuple[MergePart, int]], number: int) -> str:
    """Return the part and the row of a number in words."""
    for part, rows in parts:
        if number < rows:
            return f"{shown(part.name)}, row {number + 1}"
        number -= rows
    raise IndexError(number)


def promoted(one: Any, other: Any) -> Any:
    """Return a field whose type holds every value of two fields exactly; None where there is none."""
    try:
        merged = pa.unify_schemas([pa.schema([one]), pa.schema([other])], promote_options="permissive").field(0)
    except pa.ArrowException:
        return None
    return merged if _is_exact(one.type, merged.type) and _is_exact(other.type, merged.type) else None


def _is_exact(kind: Any, merged: Any) -> bool:
    """Return True if a promotion by pyarrow changes no value: of 64-bit integers and decimals to floats it might."""
    if types.is_floating(merged):
        return bool(types.is_floating(kind) or types.is_null(kind) or (types.is_integer(kind) and kind.bit_width < 64))
    if types.is_struct(kind):
        return all(_is_exact(field.type, merged.field(field.name).type) for field in kind)
    if types.is_map(kind):
        return _is_exact(kind.key_type, merged.key_type) and _is_exact(kind.item_type, merged.item_type)
    if hasattr(kind, "value_type"):
        return _is_exact(kind.value_type, merged.value_type)
    return not (types.is_string(kind) and types.is_binary(merged))


def _with_columns(table: Any, schema: Any, part: MergePart) -> Any:
    columns = []
    for field in schema:
        try:
            has_it = field.name in table.column_names
            columns.append(table[field.name].cast(field.type) if has_it else pa.nulls(table.num_rows, field.type))
        except (pa.ArrowException, ValueError) as error:
            why = f"column {shown(field.name)!r} does not fit into {shown(field.type)}: {shown(error, 120)}"
            raise MergeRefused(why, where=part.name) from None
    return pa.table(columns, schema=schema)


def _keys(column: Any) -> Iterator[bytes]:
    """Return the identity of each row."""
    if getattr(column.type, "unit", "") == "ns":  # for which Python has no type
        column = column.cast(pa.int64())
    try:
        return map(field_identity, column.to_pylist())
    except ValueError:
        what = f"no repeated rows can be found by a column of {shown(column.type)}"
        raise MergeRefused(what, hint="--key another column") from None


def _row_groups(tables: Iterator[Any]) -> Iterator[Any]:
    """Yield the same rows in pieces that make good row groups."""
    held: list[Any] = []
    for table in tables:
        held.append(table)
        if sum(one.nbytes for one in held) >= GROUP_BYTES or sum(one.num_rows for one in held) >= GROUP_ROWS:
            yield pa.concat_tables(held)
            held.clear()
    if held:
        yield pa.concat_tables(held)
