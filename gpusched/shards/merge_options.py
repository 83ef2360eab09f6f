"""The options of a merge and the formats that it knows, one row each. Pure values: the command lines, the stage and
the record of `gpusched shard` are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from gpusched.common.option_table import Option, options_of
from gpusched.common.option_table import option as table_option


class FormatRow(NamedTuple):
    """One format: its module and class in commands/merge/formats, the library that it needs, and what it can do."""

    module: str
    class_name: str
    library: str = ""
    has_keys: bool = False  # --key finds repeated records
    has_sums: bool = False  # --sum adds numbers up


MERGE_FORMATS: dict[str, FormatRow] = {
    "jsonl": FormatRow("jsonl", "JsonLines", has_keys=True),
    "json": FormatRow("json_document", "JsonArrays", has_keys=True, has_sums=True),
    "csv": FormatRow("tables", "CsvTables", has_keys=True),
    "tsv": FormatRow("tables", "TsvTables", has_keys=True),
    "txt": FormatRow("txt", "TextLines"),
    "parquet": FormatRow("parquet", "ParquetTables", "pyarrow", has_keys=True),
    "npz": FormatRow("npz", "NumpyArchives", "numpy", has_sums=True),
    "npy": FormatRow("npy", "NumpyFiles", "numpy"),
    "safetensors": FormatRow("safetensors", "SafetensorsFiles"),
    "pt": FormatRow("pt", "TorchFiles", "torch", has_sums=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOption(Option):
    """The description of one option. `shard` is its flag in `gpusched shard`, whose plan then records it."""

    shard: str = ""


option = partial(table_option, kind=MergeOption)


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """The options of a merge. The name of a field is that of its flag and of its key in the plan's record."""

    output: str | None = option(
        None, "Merge into this file; its suffix chooses the format.", metavar="FILE", short="-o", shard="--merge-output"
    )
    sum: tuple[str, ...] = option(
        (), "Add up the numbers under this key. May be repeated.", metavar="KEY", shard="--merge-sum"
    )
    key: str | None = option(None, "Find repeated records by this field.", metavar="FIELD", shard="--merge-key")
    on_duplicate: str = option(
        "error",
        "Refuse repeated records, or keep the first or the last of them.",
        choices=("error", "keep-first", "keep-last"),
        shard="--merge-on-duplicate",
    )
    allow_partial: bool = option(
        False, "Merge the parts that exist, even if others are missing or too short.", shard="--allow-partial"
    )
    plan: str | None = option(None, "Merge the files that this plan of gpusched shard names.", metavar="FILE")
    by: str = option(
        "natural",
        "Put the parts in natural order (gpu_2 before gpu_10), or as they are named.",
        choices=("natural", "given"),
    )
    expect: int | None = option(
        None, "Exit with 1 unless the output has N records.", metavar="N", shard="--merge-expect", takes=int
    )
    nan: str = option(
        "null",
        "Write NaN and Infinity in JSON as null, or leave their records out.",
        choices=("null", "refuse"),
        shard="--merge-nan",
    )
    allow_pickle: bool = option(
        False, "Load .pt files whole: this runs the code that they name.", shard="--merge-allow-pickle"
    )
    promote: bool = option(
        False,
        "Join .parquet columns of other types, such as whole numbers and floats, where no value changes.",
        shard="--merge-promote",
    )
    header: str | None = option(
        None,
        "Say whether the first row of .csv and .tsv parts has the names of the columns, where it is all numbers.",
        choices=("yes", "no"),
        shard="--merge-header",
    )
    remove_parts: bool = option(False, "Remove the parts once the output is complete on disk.")
    overwrite: bool = option(False, "Replace a file that no merge has made, or a complete one.")


def shard_rows() -> list[MergeOption]:
    """Return the options that `gpusched shard` has too, with their flags there."""
    return [replace(row, spelt=row.shard, short="") for row in options_of(MergeOptions) if row.shard]


def plan_record(options: MergeOptions) -> dict[str, Any]:
    """Return the options that a plan of shards records, as JSON values."""
    values = {row.name: getattr(options, row.name) for row in shard_rows()}
    return values | {"sum": list(options.sum)}


def from_plan_record(record: Mapping[str, Any]) -> MergeOptions:
    """Return the options that a plan of shards records. Keys that are unknown here are left out."""
    names = [row.name for row in shard_rows() if record.get(row.name) is not None]
    values: dict[str, Any] = {name: record[name] for name in names}
    return MergeOptions(**{**values, "sum": tuple(record.get("sum") or ())})


def with_recorded(options: MergeOptions, recorded: MergeOptions) -> MergeOptions:
    """Return the options of a command line, with those of a plan where it has none; values of both are added."""
    values: dict[str, Any] = {}
    for row in shard_rows():
        own, other = getattr(options, row.name), getattr(recorded, row.name)
        values[row.name] = own + other if isinstance(own, tuple) else other if own == row.default else own
    return replace(options, **values)
