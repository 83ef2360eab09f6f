"""Parquet: columns by name, types widened only where no value can change. Holds all rows only to shuffle them back."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .output import Output
from .parts import ItemOrder, Merged, Options, Part
from .records import NO_KEY, KeyFilter, check_key, field_identity, tell_lacking
from .trouble import PartUnreadable, Refused, Told, clean, reading, too_many_open
from .widening import widened

BATCH_BYTES = 1 << 20
TOGETHER_BYTES = 1 << 26  # of the batches of all parts, where rows are taken from all in turn
GROUP_BYTES = 1 << 24
BATCH_ROWS = 1 << 12  # few enough that rows which are larger than the first ones, and said to be small, do no harm
PROBED_ROWS = 256
GROUP_ROWS = 1 << 20

_ROWS = 1 << 40  # more than a part has
_ORIGIN = pa.field("\0origin", pa.int64(), nullable=False)  # part * _ROWS + row: a column more, where rows are named


class Opened:
    """One part, read batch by batch, under the columns of all."""

    def __init__(self, part: Part, number: int, batch_bytes: int) -> None:
        self.part = part
        self.number = number  # of the part, among all
        try:
            # Not mapped and not read ahead: memory stays that of a batch.
            # By bytes: pyarrow takes no name that is not UTF-8.
            source = pa.OSFile(os.fsencode(part.path))
            self.file = pq.ParquetFile(source, memory_map=False, pre_buffer=False, buffer_size=batch_bytes)
        except (pa.ArrowException, OSError, ValueError) as error:
            why = "is empty" if part.size == 0 else f"is no Parquet file, or cut: {clean(error, 120)}"
            raise too_many_open(error) or PartUnreadable(why) from None
        told = self.file.metadata
        self.rows: int = told.num_rows
        size = sum(told.row_group(k).total_byte_size for k in range(told.num_row_groups))
        row_bytes = max(size / max(self.rows, 1), self._row_bytes())
        self.batch_rows = max(1, min(BATCH_ROWS, int(batch_bytes / max(row_bytes, 1))))
        self.codec: str = told.row_group(0).column(0).compression if told.num_row_groups and told.num_columns else ""

    def _row_bytes(self) -> float:
        """Of the first rows, as they are in memory: the file says how large they are encoded, repeated values once."""
        try:
            batch = next(self.file.iter_batches(batch_size=PROBED_ROWS))
        except (StopIteration, pa.ArrowException, OSError):  # told when they are read
            return 0.0
        return float(batch.nbytes / max(batch.num_rows, 1))

    def tables(self, schema: Any) -> Iterator[Any]:
        """All rows, with _ORIGIN if the schema has it; PartUnreadable where they cannot be read on."""
        self.part.records = 0
        try:
            for batch in self.file.iter_batches(batch_size=self.batch_rows):
                table = pa.Table.from_batches([batch])
                if _ORIGIN.name in schema.names:
                    first = self.number * _ROWS + self.part.records
                    table = table.append_column(_ORIGIN, pa.array(range(first, first + table.num_rows), pa.int64()))
                self.part.records += table.num_rows
                yield _conformed(table, schema, self.part)
        except (pa.ArrowException, OSError) as error:
            raise PartUnreadable(
                f"is damaged: from row {self.part.records + 1} on it is left out: {clean(error, 120)}"
            ) from None


def merge_parquet(parts: Sequence[Part], out: Output, order: ItemOrder | None, options: Options, told: Told) -> Merged:
    opened: list[Opened] = []
    batch_bytes = max(1 << 16, min(BATCH_BYTES, TOGETHER_BYTES // len(parts)))
    for number, part in enumerate(parts):
        with reading(part, told):
            opened.append(Opened(part, number, batch_bytes))
    if not opened:
        return Merged(None)
    schema = _union(opened, told)
    if options.key is not None:
        check_key(options.key, schema.names)
        opened = _with_key(opened, options.key, told)
    if order is not None and not order.fits([one.part for one in opened], [one.rows for one in opened]):
        told.not_in_order()
        order = None

    def stream(schema: Any) -> Iterator[Any]:
        streams = [_rows(one, schema, told) for one in opened]
        if order is None:
            return chain.from_iterable(streams)
        return (_dealt if order.shuffle_seed is None else _in_memory)(opened, streams, schema, order)

    if options.key is None:
        chosen = stream(schema)
    else:
        chosen = _without_duplicates(lambda: stream(schema.append(_ORIGIN)), parts, options, told)
    rows = 0
    codec = next((one.codec for one in opened if one.codec), "SNAPPY")
    with out.file() as file, pq.ParquetWriter(file, schema, compression=_codec(codec)) as writer:
        for table in _groups(chosen):
            writer.write_table(table, row_group_size=GROUP_ROWS)
            rows += table.num_rows
            del table  # else it would stay until the next group is whole
    return Merged(rows)


def _codec(name: str) -> str:
    return "NONE" if name == "UNCOMPRESSED" else name


# ---- columns ---------------------------------------------------------------------------------------


def _union(opened: Sequence[Opened], told: Told) -> Any:
    """All columns in the order in which they come, each in a type that holds the values of all parts."""
    fields: dict[str, tuple[Any, Part]] = {}
    schemas = [(one.part, one.file.schema_arrow) for one in opened]
    for part, schema in schemas:
        if len(set(schema.names)) < len(schema.names):
            raise Refused("names a column twice", where=part.name)
        for field in schema:
            before, first = fields.get(field.name, (field, part))
            kind = widened(before.type, field.type)
            if kind is None:
                raise Refused(
                    f"column {clean(field.name)!r} is {clean(field.type)}, and {clean(before.type)} in "
                    f"{clean(first.name)}: no type holds both exactly",
                    where=part.name,
                    hint="write that column alike in all parts, or leave this one out",
                )
            if kind != field.type or kind != before.type:
                told.note(f"column {clean(field.name)!r} is widened to {clean(kind)}")
            made = pa.field(field.name, kind, before.nullable or field.nullable, before.metadata)
            fields[field.name] = (made, first if kind == before.type else part)
    for name, (field, first) in fields.items():
        if lacking := [part for part, schema in schemas if name not in schema.names]:
            tell_lacking(told, name, lacking, len(schemas), "null")
            fields[name] = (field.with_nullable(True), first)
    texts = schemas[0][1].metadata
    if any(schema.metadata != texts for _, schema in schemas):
        told.note("the parts' schema metadata differ (those of pandas, say): the output has none")
        texts = None
    return pa.schema([field for field, _ in fields.values()], metadata=texts)


def _with_key(opened: Sequence[Opened], key: str, told: Told) -> list[Opened]:
    """Those that have the column; the rows of the others are not repeated ones, and are left out."""
    kept = []
    for one in opened:
        with reading(one.part, told):
            if one.rows and key not in one.file.schema_arrow.names:
                raise PartUnreadable(NO_KEY)
            kept.append(one)
    return kept


def _conformed(table: Any, schema: Any, part: Part) -> Any:
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowException, ValueError) as error:
            raise Refused(
                f"column {clean(field.name)!r} does not fit into {clean(field.type)}: {clean(error, 120)}",
                where=part.name,
            ) from None
    return pa.table(columns, schema=schema)


# ---- rows ------------------------------------------------------------------------------------------


def _rows(one: Opened, schema: Any, told: Told) -> Iterator[Any]:
    """Those of a part that can be read; what cannot is told."""
    with reading(one.part, told):
        yield from one.tables(schema)


class _Taker:
    """Takes as many rows of a part as are wanted, one after the other; fewer at its end."""

    def __init__(self, tables: Iterator[Any], schema: Any) -> None:
        self._tables = tables
        self._held = schema.empty_table()

    def take(self, count: int) -> Any:
        while self._held.num_rows < count and (table := next(self._tables, None)) is not None:
            self._held = pa.concat_tables([self._held, table])
        taken, self._held = self._held.slice(0, count), self._held.slice(count)
        return taken


# Each row knows its item by its number in the part. So what a damaged part lacks at its end moves no other row.


def _dealt(opened: Sequence[Opened], streams: Sequence[Iterator[Any]], schema: Any, order: ItemOrder) -> Iterator[Any]:
    """Strided parts: one row of each in turn, a block at a time."""
    takers = [_Taker(stream, schema) for stream in streams]
    sequence = order.sequence([one.part.shard for one in opened if one.part.shard is not None])
    size = max(len(opened), min(one.batch_rows for one in opened))
    while block := list(islice(sequence, size)):
        counts = [0] * len(opened)
        for k in block:
            counts[k] += 1
        tables = [taker.take(count) for taker, count in zip(takers, counts, strict=True)]
        ends = list(accumulate(table.num_rows for table in tables))
        nexts = [0, *ends[:-1]]
        places = []
        for k in block:
            if nexts[k] < ends[k]:
                places.append(nexts[k])
                nexts[k] += 1
        yield pa.concat_tables(tables).take(pa.array(places, pa.int64()))


def _in_memory(
    opened: Sequence[Opened], streams: Sequence[Iterator[Any]], schema: Any, order: ItemOrder
) -> Iterator[Any]:
    """Shuffled parts: rows have to be taken from everywhere at once."""
    tables, count = [schema.empty_table()], 0
    found = array("q")  # for each row of all parts, where it stands; -1 if it could not be read
    for one, stream in zip(opened, streams, strict=True):
        first = count
        for table in stream:
            tables.append(table)
            count += table.num_rows
        found.extend(range(first, count))
        found.extend([-1] * (one.rows - (count - first)))
    places = order.places([one.part.shard for one in opened if one.part.shard is not None])
    kept = array("q", (found[place] for place in places if found[place] >= 0))
    yield pa.concat_tables(tables).take(pa.array(kept, pa.int64()))


def _without_duplicates(
    stream: Callable[[], Iterator[Any]], parts: Sequence[Part], options: Options, told: Told
) -> Iterator[Any]:
    """Each key once, at its own place, of rows with their origin."""
    column = options.key
    assert column is not None
    known = KeyFilter(options, told, lambda: (key for table in stream() for key in _keys(table.column(column))))
    for table in stream():
        origin = table.column(_ORIGIN.name).to_pylist()
        keep = []
        for key, place in zip(_keys(table.column(column)), origin, strict=True):
            keep.append(known.takes(key, f"{clean(parts[place // _ROWS].name)}, row {place % _ROWS + 1}"))
        yield table.drop_columns([_ORIGIN.name]).filter(pa.array(keep, pa.bool_()))
    known.close()


def _keys(column: Any) -> Iterator[bytes]:
    """The identity of each row."""
    if getattr(column.type, "unit", "") == "ns":  # for which Python has no type
        column = column.cast(pa.int64())
    try:
        return map(_identity, column.to_pylist())
    except ValueError:
        what = f"no repeated rows can be found by a column of {clean(column.type)}"
        raise Refused(what, hint="--key another column") from None


def _identity(value: Any) -> bytes:
    try:
        return field_identity(value)
    except (TypeError, ValueError):
        return repr(value).encode("utf-8", "surrogatepass")


def _groups(tables: Iterator[Any]) -> Iterator[Any]:
    """The same rows in pieces that make good row groups."""
    held: list[Any] = []
    rows = size = 0
    for table in tables:
        held.append(table)
        rows += table.num_rows
        size += table.nbytes
        if size >= GROUP_BYTES or rows >= GROUP_ROWS:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)
