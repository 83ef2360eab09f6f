"""The options of a merge and the formats that it knows, one row each. Pure values: the command lines, the stage and
the record of `gpusched shard` are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple


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


def _option(help: str, default: Any = None, **more: Any) -> Any:
    """Describe one option. `more`: fields of its row, see OptionRow."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """The options of a merge. The name of a field is that of its flag and of its key in the plan's record."""

    output: str | None = _option(
        "Merge into this file; its suffix chooses the format.", metavar="FILE", short="-o", shard="--merge-output"
    )
    sum: tuple[str, ...] = _option(
        "Add up the numbers under this key. May be repeated.", (), metavar="KEY", shard="--merge-sum"
    )
    key: str | None = _option("Find repeated records by this field.", metavar="FIELD", shard="--merge-key")
    on_duplicate: str = _option(
        "Refuse repeated records, or keep the first or the last of them.",
        "error",
        choices=("error", "keep-first", "keep-last"),
        shard="--merge-on-duplicate",
    )
    allow_partial: bool = _option(
        "Merge the parts that exist, even if others are missing or too short.", False, shard="--allow-partial"
    )
    plan: str | None = _option("Merge the files that this plan of gpusched shard names.", metavar="FILE")
    by: str = _option(
        "Put the parts in natural order (gpu_2 before gpu_10), or as they are named.",
        "natural",
        choices=("natural", "given"),
    )
    expect: int | None = _option("Exit with 1 unless the output has N records.", metavar="N", shard="--merge-expect")
    nan: str = _option(
        "Write NaN and Infinity in JSON as null, or leave their records out.",
        "null",
        choices=("null", "refuse"),
        shard="--merge-nan",
    )
    allow_pickle: bool = _option(
        "Load .pt files whole: this runs the code that they name.", False, shard="--merge-allow-pickle"
    )
    promote: bool = _option(
        "Join .parquet columns of other types, such as whole numbers and floats, where no value changes.",
        False,
        shard="--merge-promote",
    )
    header: str | None = _option(
        "Say whether the first row of .csv and .tsv parts has the names of the columns, where it is all numbers.",
        choices=("yes", "no"),
        shard="--merge-header",
    )
    remove_parts: bool = _option("Remove the parts once the output is complete on disk.", False)
    overwrite: bool = _option("Replace a file that no merge has made, or a complete one.", False)


class OptionRow(NamedTuple):
    """One option as a command line needs it. `kind`: str, int, tuple (it may be repeated) or bool (a switch).

    `shard` is its flag in `gpusched shard`; the plan of the shards records it then.
    """

    name: str
    kind: type
    default: Any
    help: str
    metavar: str = ""
    short: str = ""
    choices: tuple[str, ...] = ()
    shard: str = ""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def full_help(self) -> str:
        return self.help + (f"  [default: {self.default}]" if self.choices and self.default else "")


def option_rows() -> list[OptionRow]:
    """Return the options in the order of --help."""
    kinds = {"bool": bool, "int | None": int, "tuple[str, ...]": tuple}
    return [
        OptionRow(each.name, kinds.get(str(each.type), str), each.default, **each.metadata)
        for each in fields(MergeOptions)
    ]


def shard_rows() -> list[OptionRow]:
    """Return the options that `gpusched shard` has too."""
    return [row for row in option_rows() if row.shard]


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
        values[row.name] = own + other if row.kind is tuple else other if own == row.default else own
    return replace(options, **values)
