"""The options of a merge and the formats that it knows, one row each. Pure values: the command lines, the stage and
the record of `gpusched shard` are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple


class FormatRow(NamedTuple):
    """One format: its module and class in commands/merge/formats, the library that it needs, and what it can do."""

    module: str
    class_name: str
    library: str = ""
    remedy: str = ""
    has_keys: bool = False  # --key finds repeated records
    has_sums: bool = False  # --sum adds numbers up


_EXTRA = "pip install 'gpusched-lab[merge]'"
_TORCH = "install PyTorch, as the script that wrote them has it"
MERGE_FORMATS: dict[str, FormatRow] = {
    "jsonl": FormatRow("jsonl", "JsonLines", has_keys=True),
    "json": FormatRow("json_document", "JsonArrays", has_keys=True, has_sums=True),
    "csv": FormatRow("tables", "CsvTables", has_keys=True),
    "tsv": FormatRow("tables", "TsvTables", has_keys=True),
    "txt": FormatRow("txt", "TextLines"),
    "parquet": FormatRow("parquet", "ParquetTables", "pyarrow", _EXTRA, has_keys=True),
    "npz": FormatRow("npz", "NumpyArchives", "numpy", _EXTRA, has_sums=True),
    "npy": FormatRow("npy", "NumpyFiles", "numpy", _EXTRA),
    "safetensors": FormatRow("safetensors", "SafetensorsFiles", has_sums=True),
    "pt": FormatRow("pt", "TorchFiles", "torch", _TORCH, has_sums=True),
}


def _option(
    help: str,
    default: Any = None,
    *,
    metavar: str = "",
    short: str = "",
    choices: tuple[str, ...] = (),
    in_plan: bool = False,
) -> Any:
    """Describe one option. `in_plan`: `gpusched shard` has it too, and its plan records it."""
    more = {"help": help, "metavar": metavar, "short": short, "choices": choices, "in_plan": in_plan}
    return field(default=default, metadata=more)


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """The options of a merge. The name of a field is that of its flag and of its key in the plan's record."""

    output: str | None = _option(
        "The file to make; its suffix chooses the format.", metavar="OUT", short="-o", in_plan=True
    )
    plan: str | None = _option("Merge the files that this plan of gpusched shard names.", metavar="FILE")
    by: str = _option(
        "Put the parts in natural order (gpu_2 before gpu_10), or as they are named.",
        "natural",
        choices=("natural", "given"),
    )
    key: str | None = _option("Find repeated records by this field.", metavar="FIELD", in_plan=True)
    on_duplicate: str | None = _option(
        "Refuse repeated records (the default), or keep the first or the last of them.",
        choices=("error", "keep-first", "keep-last"),
        in_plan=True,
    )
    expect: int | None = _option("Exit with 1 unless the output has N records.", metavar="N")
    sum: tuple[str, ...] = _option(
        "Add up the numbers under this key; may be repeated.", (), metavar="KEY", in_plan=True
    )
    nan: str = _option(
        "Write NaN and Infinity in JSON as null, or leave their records out.", "null", choices=("null", "refuse")
    )
    allow_partial: bool = _option(
        "Merge the parts that exist, though others are missing or too short.", False, in_plan=True
    )
    allow_pickle: bool = _option("Load .pt files whole: this runs the code that they name.", False)
    remove_parts: bool = _option("Remove the parts once the output is complete and verified.", False)
    overwrite: bool = _option("Replace a file that no merge has made, or a complete one.", False)


class OptionRow(NamedTuple):
    """One option as a command line needs it. `kind`: str, int, tuple (it may be repeated) or bool (a switch)."""

    name: str
    kind: type
    default: Any
    help: str
    metavar: str
    short: str
    choices: tuple[str, ...]
    in_plan: bool

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"


def option_rows(options: type[MergeOptions] = MergeOptions) -> list[OptionRow]:
    """Return the options in the order of --help."""
    kinds = {"bool": bool, "int | None": int, "tuple[str, ...]": tuple}
    return [
        OptionRow(each.name, kinds.get(str(each.type), str), each.default, **each.metadata) for each in fields(options)
    ]


def plan_record(options: MergeOptions) -> dict[str, Any]:
    """Return the part of the options that a plan of shards records, as JSON values."""
    values = {row.name: getattr(options, row.name) for row in option_rows(type(options)) if row.in_plan}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def from_plan_record(record: Mapping[str, Any]) -> MergeOptions:
    """Return the options that a plan of shards records; keys that are unknown here are left out."""
    known = {row.name: row for row in option_rows() if row.in_plan and row.name in record}
    return MergeOptions(
        **{name: tuple(record[name]) if row.kind is tuple else record[name] for name, row in known.items()}
    )
