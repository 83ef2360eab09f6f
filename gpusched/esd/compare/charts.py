"""The comparison of models as charts: depth, base and adapter, families, columns of the list, series. Draws nothing.

Models whose means count nowhere (partial, old rules) are left out. Exponents of layers come from the long table.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import median

from gpusched.common.text import natural_key
from gpusched.esd.compare.rank_correlation import interval, spearman
from gpusched.esd.layers_table import read_exponents
from gpusched.esd.model_list import NAME_COLUMNS, OTHER_COLUMNS
from gpusched.esd.records import ModelResult
from gpusched.views.html.charts import COLOURS, INK, Box, Chart, Marks, Scale

_USUAL = (2.0, 6.0)  # where the exponents of well-trained layers mostly lie (Martin, Peng, Mahoney 2021)
_MOST_FAMILIES, _MOST_COLUMNS, _MOST_POINTS = 24, 8, 40
_LEAST_MODELS, _LEAST_STEPS = 5, 3  # of a correlation, and of a series
_WIDE_RATIO = 50.0  # from which on an axis is logarithmic
_FAMILY = "family"  # a column of the list
_STEP = re.compile(r"[-_/@.](?:(?:checkpoint|ckpt|step|epoch|iter)[-_]?|(?<=@))(\d+)", re.IGNORECASE)
_YEAR_S = 365.2425 * 86400

Layers = Mapping[str, Sequence[tuple[float, float]]]  # of each model: place in its depth, 0 to 1, and exponent


def charts(results: Iterable[ModelResult], output: str) -> list[Chart]:
    """Return the charts that these results have enough models for."""
    models = {each.name: each for each in results if each.success and not each.flag}
    medians = {name: value for name, each in models.items() if (value := each.record.get("alpha_median"))}
    if len(medians) < 2:
        return []
    families = {name: _family(models[name], models) for name in medians}
    layers = {name: points for name, points in read_exponents(output).items() if name in medians}
    found = [_by_depth(layers, families), _by_family(layers, families), _by_base(models, medians)]
    found += _by_step(medians)
    found += _by_columns(models, medians)
    return [chart for chart in found if chart is not None]


def _family(result: ModelResult, models: Mapping[str, ModelResult]) -> str:
    """Return the column `family` of a model's row, else the last base of it that is known."""
    cells = dict(result.row.cells) if result.row else {}
    if cells.get(_FAMILY):
        return cells[_FAMILY]
    name, seen = result.name, {result.name}
    while (row := models[name].row if name in models else None) and row.source and row.source not in seen:
        name = row.source
        seen.add(name)
    step = _STEP.search(name)
    return name[: step.start()] if step else name


def _axis(values: Sequence[float], label: str = "α") -> tuple[Scale, str]:
    """Return an axis that a few values far above the others do not stretch, and a note on these."""
    ordered = sorted(values)
    high = min(ordered[-1], 1.6 * ordered[int(0.95 * (len(ordered) - 1))])
    margin = 0.06 * (high - ordered[0]) or 0.5
    above = sum(value > high for value in ordered)
    note = f"{above} values above {high:.3g}, up to {ordered[-1]:.3g}, lie on the edge." if above else ""
    return Scale(label, max(1.0, ordered[0] - margin), high + (0 if above else margin)), note


def _common(groups: Iterable[str]) -> dict[str, int]:
    """Return a colour for each of the largest groups of several; others are grey."""
    largest = [group for group, number in Counter(groups).most_common(len(COLOURS)) if number > 1]
    return {group: colour for colour, group in enumerate(largest)}


def _by_depth(layers: Layers, families: Mapping[str, str]) -> Chart | None:
    lines = {name: _profile(points) for name, points in layers.items() if len(points) > 1}
    if not lines:
        return None
    y, note = _axis([alpha for points in lines.values() for _, alpha in points])
    colours = _common(families[name] for name in lines)
    marks, labelled = [], set()
    for name in sorted(lines, key=lambda name: families[name] in colours):
        family = families[name]
        label = family if family in colours and family not in labelled else ""
        labelled.add(family)
        marks.append(Marks(label, lines[name], (name,), colours.get(family), 1.6 if len(lines) <= 30 else 0.9))
    if len(colours) < len(set(families.values())):
        marks.append(Marks("others", (), width=1.0))
    if len(lines) > 2:
        middle = _profile([point for points in lines.values() for point in points])
        marks.append(Marks("median of all", middle, ("median of all",), INK, 2.6))
    x = Scale("depth: first block to last", 0.0, 1.0)
    return Chart(f"α by depth, {len(lines)} models", note, x, y, marks, usual=_USUAL, is_wide=True)


def _profile(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the median exponent at each place in the depth; of many places, in intervals."""
    places: dict[float, list[float]] = defaultdict(list)
    many = len({place for place, _ in points}) > _MOST_POINTS
    for place, alpha in points:
        places[round(place * _MOST_POINTS) / _MOST_POINTS if many else place].append(alpha)
    return [(place, median(alphas)) for place, alphas in sorted(places.items())]


def _by_family(layers: Layers, families: Mapping[str, str]) -> Chart | None:
    members: dict[str, list[str]] = defaultdict(list)
    for name in layers:
        members[families[name]].append(name)
    if len(members) < 2:
        return None
    largest = sorted(members, key=lambda family: (-len(members[family]), natural_key(family)))[:_MOST_FAMILIES]
    alphas = {family: sorted(alpha for name in members[family] for _, alpha in layers[name]) for family in largest}
    boxes = [
        Box(f"{family} ({len(members[family])})", _quantiles(values)) for family, values in alphas.items() if values
    ]
    x, note = _axis([value for box in boxes for value in box.values])
    rest = f"The {_MOST_FAMILIES} largest of {len(members)}." if len(members) > len(largest) else ""
    about = "Layers of all models: median, quartiles, 5 to 95 %. In brackets: models."
    return Chart("α by family", " ".join(filter(None, (about, rest, note))), x, boxes=boxes)


def _quantiles(ordered: Sequence[float]) -> tuple[float, float, float, float, float]:
    low, first, middle, third, high = (
        ordered[round(share * (len(ordered) - 1))] for share in (0.05, 0.25, 0.5, 0.75, 0.95)
    )
    return low, first, middle, third, high


def _by_base(models: Mapping[str, ModelResult], medians: Mapping[str, float]) -> Chart | None:
    groups: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for name, alpha in medians.items():
        row = models[name].row
        if row and row.source in medians and row.source != name:
            kind = "adapter" if row.is_adapter else row.relation or "other"
            groups[kind].append((medians[row.source], alpha, f"{name} on {row.source}"))
    if not groups:
        return None
    pairs = [pair for group in groups.values() for pair in group]
    x, _ = _axis([base for base, _, _ in pairs], "median α of the base")
    y, note = _axis([alpha for _, alpha, _ in pairs], "median α of the model")
    colours = sorted(groups, key=lambda kind: -len(groups[kind]))
    marks = [
        Marks(kind, [each[:2] for each in groups[kind]], [each[2] for each in groups[kind]], n)
        for n, kind in enumerate(colours)
    ]
    higher = sum(alpha > base for base, alpha, _ in pairs)
    about = f"{higher} of {len(pairs)} lie above the diagonal, where both are equal. {note}"
    return Chart("base against what was made of it", about, x, y, marks, diagonal=True)


def _by_step(medians: Mapping[str, float]) -> Iterator[Chart]:
    """Yield a chart of the series: checkpoints of a run, or revisions of a model, by the numbers in their names."""
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, alpha in medians.items():
        if step := _STEP.search(name):
            series[name[: step.start()]].append((float(step[1]), alpha))
    long = [(name, sorted(points)) for name, points in sorted(series.items()) if len(points) >= _LEAST_STEPS]
    if not long:
        return
    steps, alphas = zip(*(point for _, points in long for point in points), strict=True)
    y, note = _axis(alphas, "median α")
    marks: list[Marks] = []
    for n, (name, points) in enumerate(long):
        colour = n if n < len(COLOURS) else None
        marks.append(Marks("" if colour is None else name, points, (name,), colour, 1.8))
        marks.append(Marks("", points, [f"{name}, step {step:g}: {alpha:.3f}" for step, alpha in points], colour))
    yield Chart("α against step", note, _scaled("step", steps), y, marks, usual=_USUAL)


def _by_columns(models: Mapping[str, ModelResult], medians: Mapping[str, float]) -> Iterator[Chart]:
    """Yield a chart for each column of the list that has numbers or dates."""
    columns: dict[str, dict[str, float]] = defaultdict(dict)
    for name in medians:
        row = models[name].row
        for column, cell in row.cells if row else ():
            if column not in (*NAME_COLUMNS, *OTHER_COLUMNS, _FAMILY, "") and (value := _value(cell)) is not None:
                columns[column][name] = value
    several = {key: values for key, values in columns.items() if len(values) >= _LEAST_MODELS}
    for column, values in list(several.items())[:_MOST_COLUMNS]:
        xs, ys = list(values.values()), [medians[name] for name in values]
        rho = spearman(xs, ys)
        if math.isnan(rho):
            continue
        low, high = interval(xs, ys)
        y, note = _axis(ys, "median α")
        about = f"Spearman's ρ = {rho:.2f}, 95 % interval {low:.2f} to {high:.2f}, {len(xs)} models. {note}"
        points = list(zip(xs, ys, strict=True))
        yield Chart(f"α against {column}", about, _scaled(column, xs), y, [Marks("", points, list(values), 0)])


def _value(cell: str) -> float | None:
    """Return a number, or a date as a year with a fraction; None for another text."""
    try:
        value = float(cell)
        return value if math.isfinite(value) else None
    except ValueError:
        pass
    try:
        date = datetime.fromisoformat(cell.replace("Z", "+00:00")).replace(tzinfo=None)
    except ValueError:
        return None
    return date.year + (date - datetime(date.year, 1, 1)).total_seconds() / _YEAR_S


def _scaled(label: str, values: Sequence[float]) -> Scale:
    """Return an axis over all values, logarithmic if they are positive and of different sizes."""
    low, high = min(values), max(values)
    if low > 0 and high / low >= _WIDE_RATIO:
        return Scale(label, low / 1.2, high * 1.2, is_log=True)
    margin = 0.04 * (high - low) or 0.5
    return Scale(label, low - margin, high + margin)
