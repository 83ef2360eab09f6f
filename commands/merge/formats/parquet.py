"""Parquet: columns by name, their types promoted where no value changes. Holds all rows only to change their order."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
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
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        self.rows: int = footer.num_rows
        self.codec = groups[0].column(0).compression if groups and footer.num_columns else ""
        row_bytes = max(sum(group.total_byte_size for group in groups) / max(self.rows, 1), 1)
        try:  # the file stores repeated values once
            first = next(self.file.iter_batches(batch_size=256))
            row_bytes = max(row_bytes, first.nbytes / max(first.num_rows, 1))
        except (StopIteration, pa.ArrowException, OSError):  # reported when they are read
            pass
        self.batch_rows = max(1, min(BATCH_ROWS, int(BATCH_BYTES / row_bytes)))

    def tables(self, schema: Any) -> Iterator[Any]:
        """Yield all rows under the columns of `schema`. PartUnreadable where they cannot be read on."""
        self.part.records = 0
        batches = self.file.iter_batches(batch_size=self.batch_rows)
        while True:
            try:
                table = pa.Table.from_batches([next(batches)])
            except StopIteration:
                return
            except (pa.ArrowException, OSError) as error:
                row = self.part.records + 1
                raise PartUnreadable(f"is damaged: from row {row} on it is left out: {shown(error, 120)}") from None
            self.part.records += table.num_rows
            try:
                cast = {name: table[name].cast(schema.field(name).type) for name in table.column_names}
                yield pa.table([cast.get(one.name, pa.nulls(table.num_rows, one.type)) for one in schema], schema)
            except (pa.ArrowException, ValueError) as error:
                raise MergeRefused(f"does not fit into the types of all parts: {error}", where=self.part.name) from None


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
                    self._parts.remove(one)
                    raise PartUnreadable(NO_KEY)
        codec = next((one.codec for one in self._parts if one.codec), "SNAPPY").replace("UNCOMPRESSED", "NONE")
        rows, held = 0, [schema.empty_table()]
        with out.file() as file, pq.ParquetWriter(file, schema, compression=codec) as writer:
            for table in self._chosen(schema):
                held.append(table)
                rows += table.num_rows
                if sum(one.nbytes for one in held) > GROUP_BYTES:
                    writer.write_table(pa.concat_tables(held), row_group_size=GROUP_ROWS)
                    held.clear()
            if held:
                writer.write_table(pa.concat_tables(held), row_group_size=GROUP_ROWS)
        return Joined(rows)

    def _union(self) -> Any:
        """Return all columns in the order in which they come, each in a type that holds the values of all parts."""
        columns: dict[str, tuple[Any, MergePart]] = {}
        schemas = {one.part.path: one.file.schema_arrow for one in self._parts}
        for part in [one.part for one in self._parts]:
            if len({*schemas[part.path].names}) < len(schemas[part.path].names):
                raise MergeRefused("names a column twice", where=part.name)
            for column in schemas[part.path]:
                before, first = columns.get(column.name, (column, part))
                merged, name = promoted(before, column), shown(column.name)
                if merged is None:
                    why = f"column {name!r} is {shown(column.type)}, and {shown(before.type)} in {shown(first.name)}"
                    hint = "write that column alike in all parts, or leave this one out"
                    raise MergeRefused(f"{why}: no type holds both exactly", where=part.name, hint=hint)
                if not column.type == merged.type == before.type:
                    self.report.note(f"column {name!r} is widened to {shown(merged.type)}")
                columns[column.name] = merged, first if merged.type == before.type else part
        parts = [one.part for one in self._parts]
        for name, (column, first) in columns.items():
            having = [part for part in parts if name in schemas[part.path].names]
            if note_lacking(self.task, name, having, parts, "null"):
                columns[name] = column.with_nullable(True), first
        texts = schemas[parts[0].path].metadata
        if any(schema.metadata != texts for schema in schemas.values()):
            self.report.note("the parts' schema metadata differ (those of pandas, say): the output has none")
            texts = None
        return pa.schema([column for column, _ in columns.values()], metadata=texts)

    def _tables(self, schema: Any, report: MergeReport) -> Iterator[tuple[Any, str, int]]:
        """Yield all rows that can be read, in the order of the items if the parts allow it.

        With each table come the name of its part, and the number of its first row there.
        """
        order, parts = self.task.order, [one.part for one in self._parts]
        if order is not None and order.fits(parts, [one.rows for one in self._parts]):
            tables, rows, count = [schema.empty_table()], array("q"), 0  # rows: where each stands; -1: it is not read
            for one in self._parts:
                with reading(one.part, report):
                    for table in one.tables(schema):
                        tables.append(table)
                read = one.part.records or 0
                rows.extend([*range(count, count + read), *[-1] * (one.rows - read)])
                count += read
            kept = pa.array((rows[place] for place in order.places(parts) if rows[place] >= 0), pa.int64())
            yield pa.concat_tables(tables).take(kept), "in the items' order", 0
            return
        if order is not None:
            report.note_order()
        for one in self._parts:
            with reading(one.part, report):
                for table in one.tables(schema):
                    yield table, one.part.name, (one.part.records or 0) - table.num_rows

    def _chosen(self, schema: Any) -> Iterator[Any]:
        """Yield the rows without those that repeat a key, each at its own place."""
        if (key := self.key) is None:
            yield from (table for table, _, _ in self._tables(schema, self.report))
            return
        keys = KeyFilter(
            self.task, lambda: (k for t, _, _ in self._tables(schema, MergeReport()) for k in _keys(t[key]))
        )
        for table, name, first in self._tables(schema, self.report):
            rows = enumerate(_keys(table[key]), first + 1)
            yield table.filter(pa.array([keys.takes(own, name, f"row {row}") for row, own in rows], pa.bool_()))
        keys.close()


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
    inner = [name for name in ("key_type", "item_type", "value_type") if hasattr(kind, name)]
    is_text_kept = not (types.is_string(kind) and types.is_binary(merged))
    return is_text_kept and all(_is_exact(getattr(kind, name), getattr(merged, name)) for name in inner)


def _keys(column: Any) -> Iterator[bytes]:
    """Return the identity of each row."""
    if getattr(column.type, "unit", "") == "ns":  # for which Python has no type
        column = column.cast(pa.int64())
    try:
        return map(field_identity, column.to_pylist())
    except ValueError:
        what = f"no repeated rows can be found by a column of {shown(column.type)}"
        raise MergeRefused(what, hint="--key another column") from None
