"""Results as JSON lines -> a file of another format, whole or not at all.

A row has an item and its result, as the lines have. A document, a dict of lists as `--collect` writes it, has columns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from gpusched.common.files import replacing

_BATCH_ROWS = 1000


def convert(source: str, target: str) -> None:
    """Write the results of one file into another one, whose suffix chooses the format."""
    with replacing(target) as temporary:
        WRITERS[os.path.splitext(target)[1]](source, temporary)


def write_parquet(source: str, target: str) -> None:
    """Write rows, read twice so that memory stays that of a batch. Results of no common type become JSON text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if source.endswith(".json"):
        pq.write_table(pa.table(_document(source)), target)
        return
    as_text: tuple[str, ...] = ()
    for as_text in ((), ("result",), ("item", "result")):
        try:
            schemas = [pa.Table.from_pylist(batch).schema for batch in _batches(source, as_text)]
            schema = pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])
            if not any(_is_hollow(field.type) for field in schema):
                break
        except (pa.ArrowException, OverflowError):
            continue
    with pq.ParquetWriter(target, schema) as writer:
        for batch in _batches(source, as_text):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))


def _is_hollow(kind: Any) -> bool:
    """Return True for a type that Parquet has not: a struct without fields, here or below."""
    below = [kind.field(n).type for n in range(kind.num_fields)]
    return (str(kind) == "struct<>") or any(map(_is_hollow, below))


def write_pt(source: str, target: str) -> None:
    """Write a dict of items and results: tensors where all have one shape, else lists. Holds all of them."""
    import torch

    if source.endswith(".json"):
        torch.save({name: stacked(values) for name, values in _document(source).items()}, target)
        return
    rows = list(_rows(source))
    results = [row["result"] for row in rows]
    names = list(results[0]) if results and isinstance(results[0], dict) else []
    if names and all(isinstance(result, dict) and list(result) == names for result in results):
        columns: Any = {name: stacked([result[name] for result in results]) for name in names}
    else:
        columns = stacked(results)
    torch.save({"items": [row["item"] for row in rows], "results": columns}, target)


def stacked(values: list[Any]) -> Any:
    """Return numbers of one shape as a tensor, in float32 where that loses nothing; anything else as it is."""
    import torch

    try:
        tensor = torch.tensor(values)
    except (TypeError, ValueError, RuntimeError):
        return values
    if tensor.is_floating_point():
        exact = torch.tensor(values, dtype=torch.float64)
        return tensor if bool(torch.equal(tensor.double(), exact)) else exact
    return tensor


WRITERS: dict[str, Callable[[str, str], None]] = {".parquet": write_parquet, ".pt": write_pt}


def _document(path: str) -> dict[str, list[Any]]:
    with open(path, "rb") as file:
        document: dict[str, list[Any]] = json.load(file)
    return document


def _rows(path: str) -> Iterator[dict[str, Any]]:
    with open(path, "rb") as file:
        yield from map(json.loads, file)


def _batches(path: str, as_text: Iterable[str]) -> Iterator[list[dict[str, Any]]]:
    """Yield rows, some at a time; these columns as JSON text."""
    rows = _rows(path)
    while batch := list(islice(rows, _BATCH_ROWS)):
        yield [row | {name: json.dumps(row[name]) for name in as_text} for row in batch]
