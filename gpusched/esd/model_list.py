"""The rows of a CSV table of models, and notes about rows that are odd.

Columns are found by their names; other columns are kept as they are.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from gpusched.common.errors import GpuschedError
from gpusched.common.text import clean, natural_key
from gpusched.common.text_input import read_table
from gpusched.esd.model_record import ADAPTER_RELATIONS, file_stem

NAME_COLUMNS = ("full_name", "model_id")
OTHER_COLUMNS = ("source_model", "base_model_relation", "revision")
_ADDRESS = re.compile(r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/(models/)?|\w+://", re.IGNORECASE)
_ON_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HINT = "the first line names the columns: full_name (or model_id), source_model, base_model_relation, revision"


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model of a list. Its results are called `name`; `fault` says why it cannot be analysed."""

    model: str
    source: str = ""
    relation: str = ""
    revision: str = ""
    line: int = 1
    name: str = ""
    fault: str = ""
    cells: tuple[tuple[str, str], ...] = field(default=(), compare=False)  # of all columns, by their names

    @property
    def is_adapter(self) -> bool:
        """Return True if the model is merged into its source."""
        return self.relation in ADAPTER_RELATIONS

    @property
    def base(self) -> str:
        """The model that most of its weights come from."""
        return self.source if self.is_adapter and self.source else self.model

    @property
    def stem(self) -> str:
        """The name of its files, without suffix."""
        return file_stem(self.name)


@dataclass(frozen=True, slots=True)
class ModelList:
    """The rows in their order, each model once, and notes for people."""

    rows: tuple[ModelRow, ...]
    notes: tuple[str, ...] = ()


def single(model: str, *, source: str = "", relation: str = "", revision: str = "") -> ModelList:
    """Return the list of a single model. Raises GpuschedError for an impossible name."""
    relation = relation.strip().lower()
    base, revision = _base(source, relation), revision.strip()
    rows = [_checked(ModelRow(name, base, relation, revision, name=name)) for name in _expanded(_plain(model))]
    if fault := rows[0].fault:
        raise GpuschedError(fault, where="--single-model", hint="a directory, or a model's name such as acme/tiny")
    return ModelList(tuple(rows))


def read(path: str) -> ModelList:
    """Read the models of a table in a file. Raises GpuschedError as `parse`, and where the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return parse(file.read(), path)
    except OSError as error:
        raise GpuschedError(f"cannot be read: {error.strerror}", where=path, hint=_HINT) from None


def parse(data: bytes, where: str) -> ModelList:
    """Read the models of a table. Raises GpuschedError for a table that cannot be read, or that has no models."""
    notes: list[str] = []
    try:
        rows = read_table(data, notes)
    except ValueError as error:
        hint = "a table is CSV: put a field with a comma, a quote or a line break in double quotes"
        raise GpuschedError(str(error), where=where, hint=hint if str(error).startswith("line") else "") from None
    if not rows:
        raise GpuschedError("the file is empty", where=where, hint=_HINT)
    header = [cell.strip().lower() for cell in rows[0].cells]
    key = next((name for name in NAME_COLUMNS if name in header), "")
    if not key:
        names = ", ".join(clean(name)[:40] for name in header)
        problem = f"there is no column full_name or model_id; the columns are: {names}"
        raise GpuschedError(problem, where=where, hint=_HINT)
    models: list[ModelRow] = []
    for line, _, _, cells in rows[1:]:
        values = {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
        if not values.get(key):
            notes.append(f"line {line} has no {key} and is left out")
            continue
        source, relation, revision = (values.get(column, "") for column in OTHER_COLUMNS)
        relation = relation.lower()
        base, columns = _base(source, relation), tuple(values.items())
        for model in _expanded(_plain(values[key])):
            models.append(ModelRow(model, base, relation, revision, line, cells=columns))
    if not models:
        raise GpuschedError("has no models", where=where, hint=_HINT)
    return ModelList(tuple(map(_checked, _once(models, notes))), tuple(notes))


def _once(models: Sequence[ModelRow], notes: list[str]) -> Iterator[ModelRow]:
    """Return each model once. Two revisions of a model are two models, and so is an adapter with two bases."""
    revisions = Counter(model for model, _ in {(row.model, row.revision) for row in models})
    first: dict[tuple[str, str, str], int] = {}
    lines: dict[str, int] = {}
    for row in models:
        key = (row.model, row.revision, row.base)
        if key in first:
            notes.append(f"{clean(row.model)} is in line {first[key]} and in line {row.line}: it is analysed once")
            continue
        name = f"{row.model}@{row.revision}" if row.revision and revisions[row.model] > 1 else row.model
        if name in lines:
            other, name = name, f"{name}+{row.source if row.is_adapter and row.source else row.relation or 'base'}"
            notes.append(
                f"{clean(other)} has different bases in lines {lines[other]} and {row.line}: "
                f"the results of line {row.line} are called {clean(name)}"
            )
        first[key] = row.line
        fault = f"its results would have the name of those of line {lines[name]}, {name}" if name in lines else ""
        lines.setdefault(name, row.line)
        yield replace(row, name=name, fault=fault)


def _plain(name: str) -> str:
    """Return a name without blanks around it, doubled slashes, and the slash that shells put behind a directory."""
    name = name.strip()
    name = name if _ADDRESS.match(name) else re.sub(r"//+", "/", name)
    return name.rstrip("/") or name


def _expanded(name: str) -> list[str]:
    """Return the directories that a name with `*` stands for, in natural order; other names as they are."""
    paths = [path for path in glob.glob(name) if os.path.isdir(path)] if "*" in name else []
    return sorted(paths, key=natural_key) or [name]


def _base(source: str, relation: str) -> str:
    """Return the base of an adapter that a cell names as a list of one; other cells as they are."""
    names = _names(source)
    return _plain(names[0] if relation in ADAPTER_RELATIONS and len(names) == 1 else source)


def _names(source: str) -> list[str]:
    """Return the models of a cell: one, or several as in a card of the hub, with brackets or with commas."""
    return [name for part in source.strip().strip("[]").split(",") if (name := part.strip().strip("\"'"))]


def _why_no_name(row: ModelRow) -> str:
    """Return why a text of a row can be no model, with the way out; "" if all can."""
    for text in (row.model, row.source if row.is_adapter else ""):
        address = _ADDRESS.match(text)
        if address:
            name = "/".join(text[address.end() :].split("/")[:2])
            return f"{clean(text)[:80]} is an address, not a name: write {clean(name)}"
        name, _, revision = text.rpartition("@")
        if name and not os.path.exists(text) and _ON_HUB.fullmatch(name):
            return f"{clean(text)[:80]} is no name of a model: write {clean(name)}, and revision {clean(revision)}"
    if row.is_adapter and len(_names(row.source)) > 1:
        return f"source_model names {len(_names(row.source))} models, and an adapter has one base"
    return ""


def _checked(row: ModelRow) -> ModelRow:
    """Return a row with a fault if it cannot be analysed."""
    if row.source == row.model and not row.is_adapter:
        row = replace(row, source="")  # its own source: no adapter, and nothing else to load
    fault = row.fault or _why_no_name(row)
    for text in (row.model, row.source, row.revision):
        if text.startswith("-") or not text.isprintable():
            fault = fault or f"not a valid name or revision: {clean(text)[:80]}"
    try:
        file_stem(row.name)
    except ValueError as error:
        fault = fault or str(error)
    return replace(row, fault=fault)
