"""The layers of all models as one long table, esd_layers.parquet, with the columns of the list beside them."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gpusched.esd.model_record import TABLES, file_stem
from gpusched.esd.records import ModelResult, write_file

LAYERS = "esd_layers.parquet"

_MODEL, _FLAG = "model", "flag"  # the name of the model, and why its means count nowhere
_ABOUT = b"gpusched"  # in the metadata: the hash of the table of each model, and which columns are those of the list
_TEXTS = (
    *("longname", "name", "kind", "shape", "dtype", "fit_status", "warning", "solver", "device", "status", "note"),
    *("model_id", "source_model", "delta_base", "layer_type"),
)


def write_layers(output: str, results: Sequence[ModelResult]) -> None:
    """Write the table of all models that are analysed. Those whose own tables are as they were are not read again.

    Raises ImportError without pyarrow, ValueError or TypeError for tables whose columns do not go together, and
    GpuschedError if it cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = {result.name: result for result in results if result.success}
    hashes = {name: result.record["csv"].get("sha256", "") for name, result in done.items()}
    parts, known = _known_rows(f"{output}/{LAYERS}", hashes)
    for name in done:
        table = _read(f"{output}/{TABLES}/{file_stem(name)}.csv") if name not in known else None
        if table is not None:
            parts.append(table.append_column(_MODEL, pa.array([name] * len(table), pa.string())))
    if not parts:
        return
    layers = pa.concat_tables(parts, promote_options="permissive")
    cells = {name: dict(result.row.cells) if result.row else {} for name, result in done.items()}
    names = dict.fromkeys(key for each in cells.values() for key in each)
    added = [column for column in names if column not in (*layers.column_names, _FLAG, "")]
    models = layers[_MODEL].to_pylist()
    layers = layers.append_column(_FLAG, pa.array([done[model].flag for model in models], pa.string()))
    for column in added:
        values = _typed({name: each.get(column, "") for name, each in cells.items()})
        layers = layers.append_column(column, pa.array([values[model] for model in models]))
    about = {"tables": {name: hashes[name] for name in set(models)}, "list": added}
    out = io.BytesIO()
    pq.write_table(layers.replace_schema_metadata({_ABOUT: json.dumps(about)}), out)
    write_file(f"{output}/{LAYERS}", out.getvalue())


def read_exponents(output: str) -> dict[str, list[tuple[float, float]]]:
    """Return the place in its depth, from 0 to 1, and the exponent of each layer with a fit, by model.

    The place is that of the block; where no block is known, that of the row. Empty without pyarrow, or without a table.
    """
    try:
        import pyarrow.parquet as pq

        path = f"{output}/{LAYERS}"
        place = "block" if "block" in pq.read_schema(path).names else _MODEL
        stored = pq.read_table(path, columns=list({_MODEL, "alpha", place})).to_pydict()
        rows = zip(stored[_MODEL], stored["alpha"], stored[place], strict=True)
    except (ImportError, OSError, ValueError, KeyError):
        return {}
    layers: dict[str, list[tuple[float | None, float]]] = {}
    for model, alpha, block in rows:
        of_model = layers.setdefault(model, [])
        of_model.append((len(of_model) if isinstance(block, str) else block, alpha or math.nan))
    found = {}
    for model, points in layers.items():
        last = max((place for place, _ in points if place is not None), default=0) or 1
        found[model] = [(place / last, alpha) for place, alpha in points if place is not None and alpha > 1.0]
    return found


def _known_rows(path: str, hashes: Mapping[str, str]) -> tuple[list[Any], set[str]]:
    """Return the rows of an earlier table that are as they would be read again, and the names of their models."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        stored = pq.read_table(path)
        about = json.loads(stored.schema.metadata[_ABOUT])
        known = {name for name, value in hashes.items() if value and about["tables"].get(name) == value}
        own = [column for column in stored.column_names if column not in (_FLAG, *about["list"])]
        rows = stored.select(own).filter(pc.is_in(stored[_MODEL], pa.array(sorted(known), pa.string())))
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or not of ours
        return [], set()
    return [rows], known


def _read(path: str) -> Any:
    """Return the own table of a model; None if it cannot be read."""
    import pyarrow as pa
    import pyarrow.csv as reader

    try:
        return reader.read_csv(
            path, convert_options=reader.ConvertOptions(column_types=dict.fromkeys(_TEXTS, pa.string()))
        )
    except (OSError, ValueError):
        return None


def _typed(cells: Mapping[str, str]) -> Mapping[str, str | float | None]:
    """Return the cells of a column of the list as numbers, if all are; an empty one is None."""
    for kind in (int, float, str):
        try:
            return {name: kind(cell) if cell else None for name, cell in cells.items()}
        except ValueError:
            continue
    return {}
