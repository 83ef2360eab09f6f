"""Draw the results of one model: alpha by layer, and the spectra with their fitted tails. Analyses nothing.

`python -m gpusched.commands.esd.write.plots --output-dir OUT STEM…` draws OUT/per_model_csv/STEM.csv and
OUT/spectra/STEM.npz into OUT/plots.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpusched.esd.model_record import SPECTRA, TABLES, model_name

from .results import write_file

Floats = NDArray[np.float64]

PLOTS = "plots"
COLUMNS, ROWS = 5, 8  # spectra on one page
BINS = 40
DPI = 110
MOST_PAGES = 40

_SERIES = ("#3572b0", "#d9822b", "#3c9d5d", "#c2453d", "#7a5cb5", "#8a6d3b", "#d16ba5", "#3aa6a6")
_GREY, _INK = "#9aa4af", "#1b1f24"
_BLOCK = re.compile(r"(?:^|\.)(\d+)(?=\.)")
_HEIGHT_IN, _LEGEND_IN = 4.4, 2.2  # of the alphas
_FIELD_IN, _FIELD_HEIGHT_IN = 2.9, 2.15  # of one spectrum, with its margins
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_USUAL = (2.0, 6.0)  # where the exponents of well-trained layers mostly lie (Martin, Peng, Mahoney 2021)


@dataclass(frozen=True, slots=True)
class PlottedLayer:
    """One row of the table of a model. NaN if there is no fit."""

    name: str
    alpha: float
    distance: float
    xmin: float
    n_tail: int
    kept: int  # eigenvalues above the threshold

    @property
    def kind(self) -> str:
        """Its name in its block: mlp.up_proj of model.layers.3.mlp.up_proj.weight."""
        parts = self.name.removesuffix(".weight").split(".")
        last = max((n for n, part in enumerate(parts) if part.isdigit()), default=-1)
        return ".".join(parts[last + 1 :]) or ".".join(parts)

    @property
    def block(self) -> str:
        match = _BLOCK.search(self.name)
        return match[1] if match else ""


def write(output_dir: str, stem: str) -> list[str]:
    """Draw the plots of one model; return their paths. Raises OSError or ValueError if its table cannot be read."""
    import matplotlib

    matplotlib.use("Agg")
    layers = read_table(f"{output_dir}/{TABLES}/{stem}.csv")
    title = _plain(model_name(stem))
    paths = list(_spectra(output_dir, stem, title, layers))
    _remove_pages(f"{output_dir}/{PLOTS}/{stem}-esd", len(paths))
    # The alphas are drawn last: a model that has them counts as drawn.
    return [_save(_alphas(title, layers), f"{output_dir}/{PLOTS}/{stem}-alpha.png"), *paths]


def _remove_pages(path: str, kept: int) -> None:
    """Remove the pages of an earlier analysis that had more layers."""
    number = kept + 1
    while os.path.exists(page := f"{path}{f'-{number}' if number > 1 else ''}.png"):
        os.unlink(page)
        number += 1


def read_table(path: str) -> list[PlottedLayer]:
    """Read a model's table of layers (CSV): one row a layer."""
    with open(path, encoding="utf-8", newline="") as file:
        return [_layer(row) for row in csv.DictReader(file)]


def _layer(row: dict[str, str]) -> PlottedLayer:
    alpha, distance, xmin, n_tail, kept = (
        _number(row.get(k)) for k in ("alpha", "D", "fit_xmin", "n_tail", "num_evals")
    )
    return PlottedLayer(row["longname"], alpha, distance, xmin, _count(n_tail), _count(kept))


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _count(value: float) -> int:
    return int(value) if value >= 0 else 0


# ---- alpha by layer --------------------------------------------------------------------------------


def _alphas(title: str, layers: Sequence[PlottedLayer]) -> Any:
    from matplotlib.figure import Figure

    width = max(7.0, min(16.0, 3.0 + 0.06 * len(layers)))
    figure = Figure(figsize=(width, _HEIGHT_IN))
    sides = (0.55 / width, 0.55 / _HEIGHT_IN, (width - 0.55 - _LEGEND_IN) / width, 1 - 0.95 / _HEIGHT_IN)
    axes = figure.add_axes(sides)
    finite = np.array([layer.alpha for layer in layers if math.isfinite(layer.alpha)])
    top = _top(finite)
    axes.axhspan(*_USUAL, color=_GREY, alpha=0.13, linewidth=0)
    common = [kind for kind, _ in Counter(layer.kind for layer in layers).most_common()]
    named = common if len(common) <= len(_SERIES) else common[: len(_SERIES) - 1]
    for kind, colour in zip(named, _SERIES, strict=False):
        _points(axes, [(n, each) for n, each in enumerate(layers) if each.kind == kind], top, colour, _short(kind, 24))
    rest = [(n, each) for n, each in enumerate(layers) if each.kind not in named]
    if rest:
        _points(axes, rest, top, _GREY, "others")
    missing = [n for n, layer in enumerate(layers) if not math.isfinite(layer.alpha)]
    if missing:
        transform = axes.get_xaxis_transform()
        axes.plot(missing, [0.02] * len(missing), "x", color=_INK, markersize=4, transform=transform, label="no fit")
    axes.set_xlim(-0.7, max(1, len(layers)) - 0.3)
    axes.set_ylim(1.0 if not len(finite) else min(1.0, float(finite.min()) - 0.2), top * 1.04)
    _blocks(axes, layers)
    axes.set_ylabel("α")
    middle = f", median α {np.median(finite):.2f}" if len(finite) else ""
    axes.set_title(f"{title}: {len(layers)} layers{middle}", loc="left", fontsize=10)
    _tidy(axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=8, handletextpad=0.2)
    return figure


def _top(finite: Floats) -> float:
    """Return the upper end of the axis, such that a few layers far above the others do not flatten them."""
    if not len(finite):
        return 7.0
    usual = float(np.quantile(finite, 0.95)) * 1.6
    return max(6.6, min(float(finite.max()), usual))


def _points(axes: Any, points: Sequence[tuple[int, PlottedLayer]], top: float, colour: str, label: str) -> None:
    inside = [(n, layer.alpha) for n, layer in points if layer.alpha <= top]
    above = [n for n, layer in points if layer.alpha > top]
    axes.plot(*(zip(*inside, strict=True) if inside else ((), ())), "o", color=colour, markersize=4.5, label=label)
    axes.plot(above, [top] * len(above), "^", color=colour, markersize=6, clip_on=False)


def _blocks(axes: Any, layers: Sequence[PlottedLayer]) -> None:
    """Set ticks where a block begins, as many as are readable."""
    starts = [
        (n, layer.block)
        for n, layer in enumerate(layers)
        if layer.block and (n == 0 or layers[n - 1].block != layer.block)
    ]
    if 1 < len(starts) <= len(layers) / 1.5:
        shown = starts[:: max(1, math.ceil(len(starts) / 16))]
        axes.set_xticks([n for n, _ in shown], [block for _, block in shown])
        axes.set_xlabel("block")
    else:
        axes.set_xlabel("layer, in the order of the file")


# ---- spectra ---------------------------------------------------------------------------------------


def _spectra(output_dir: str, stem: str, title: str, layers: Sequence[PlottedLayer]) -> Iterator[str]:
    """Draw pages of log-log histograms, one for each layer; yield their paths."""
    from matplotlib.figure import Figure

    size = COLUMNS * ROWS
    pages = [layers[n : n + size] for n in range(0, len(layers), size)][:MOST_PAGES]
    with np.load(f"{output_dir}/{SPECTRA}/{stem}.npz", allow_pickle=False) as spectra:
        for number, page in enumerate(pages, 1):
            rows, columns = math.ceil(len(page) / COLUMNS), min(COLUMNS, len(page))
            width, height = _FIELD_IN * columns, _FIELD_HEIGHT_IN * rows + 0.35
            figure = Figure(figsize=(width, height))
            for n, layer in enumerate(page):
                left, top = _FIELD_IN * (n % columns) + 0.45, 0.35 + _FIELD_HEIGHT_IN * (n // columns) + 0.28
                inner = _FIELD_HEIGHT_IN - 0.28 - 0.3
                axes = figure.add_axes(
                    (left / width, 1 - (top + inner) / height, (_FIELD_IN - 0.6) / width, inner / height)
                )
                _field(axes, layer, spectra[layer.name] if layer.name in spectra.files else np.empty(0))
            of = f" ({number} of {len(pages)})" if len(pages) > 1 else ""
            head = f"{title}: density of eigenvalues, and the power law from xmin on{of}"
            figure.text(0.1 / width, 1 - 0.08 / height, head, fontsize=10, ha="left", va="top")
            yield _save(figure, f"{output_dir}/{PLOTS}/{stem}-esd{f'-{number}' if number > 1 else ''}.png")


def _field(axes: Any, layer: PlottedLayer, values: Floats) -> None:
    """Draw the histogram of one spectrum in decimal logarithms, with tail, power law and xmin."""
    axes.set_title(_short(layer.name.removesuffix(".weight"), 42), loc="left", fontsize=7, color=_INK, pad=4)
    kept = np.sort(values[values > 0].astype(np.float64))[-layer.kept :]
    if not len(kept):
        axes.text(0.5, 0.5, "no spectrum", ha="center", va="center", transform=axes.transAxes, fontsize=7)
        axes.set_axis_off()
        return
    logs = np.log10(kept)
    low, high = float(logs[0]), float(logs[-1])
    if high - low < 0.05:
        low, high = low - 0.05, high + 0.05
    edges = np.linspace(low, high, BINS + 1)
    counts, _ = np.histogram(logs, edges)
    density = counts / np.diff(10.0**edges) / len(kept)
    heights = np.log10(density, where=density > 0, out=np.full(len(density), -np.inf))
    bottom = float(heights[counts > 0].min()) - 0.3
    heights = np.maximum(heights, bottom)
    axes.stairs(heights, edges, baseline=bottom, fill=True, color=_GREY)
    has_fit = layer.alpha > 1 and layer.xmin > 0
    if has_fit:
        start = math.log10(layer.xmin)
        first = int(np.searchsorted(edges, start))
        if first < BINS:
            axes.stairs(heights[first:], edges[first:], baseline=bottom, fill=True, color=_SERIES[0])
        law = math.log10(layer.n_tail / len(kept) * (layer.alpha - 1) / layer.xmin)
        axes.plot([start, high], [law, law - layer.alpha * (high - start)], color=_SERIES[3], linewidth=1.3)
        axes.axvline(start, color=_INK, linewidth=0.8, linestyle=(0, (3, 2)))
    note = f"α {layer.alpha:.2f}  D {layer.distance:.3f}" if has_fit else "no fit"
    corner = {"ha": "right", "va": "top", "transform": axes.transAxes, "zorder": 5}
    axes.text(
        0.99, 0.98, note, fontsize=6.5, color=_INK, **corner, bbox={"fc": "white", "alpha": 0.8, "lw": 0, "pad": 1}
    )
    axes.set_xlim(low, high)
    axes.set_ylim(bottom, float(heights.max()) + 0.25)
    _tidy(axes)
    axes.tick_params(labelsize=6, length=2)
    axes.set_xticks(*_decades(*axes.get_xlim()))
    axes.set_yticks(*_decades(*axes.get_ylim()))


def _decades(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return ticks for an axis of decimal logarithms: whole decades, or 1, 2, 5 if there are fewer than two."""
    whole = range(math.ceil(low), math.floor(high) + 1)
    if len(whole) > 1:
        shown = whole[:: math.ceil(len(whole) / 5)]
        return [float(n) for n in shown], [f"10{str(n).translate(_SUPERSCRIPTS)}" for n in shown]
    points = [factor * 10.0**n for n in range(math.floor(low), math.floor(high) + 1) for factor in (1, 2, 5)]
    inside = [point for point in points if low <= math.log10(point) <= high]
    return [math.log10(point) for point in inside], [f"{point:g}" for point in inside]


# ---- both ------------------------------------------------------------------------------------------


def _short(name: str, width: int) -> str:
    return _plain(name if len(name) <= width else "…" + name[1 - width :])


def _plain(text: str) -> str:
    """Return text for a plot: no formula, no character that cannot be printed."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")


def _tidy(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GREY)
    axes.tick_params(colors=_INK, labelsize=8)


def _save(figure: Any, path: str) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI, metadata={"Software": None})
    write_file(Path(path), data.getvalue())
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the plots of these models; return 1 if one of them could not be drawn."""
    parser = argparse.ArgumentParser(prog="python -m gpusched.commands.esd.write.plots", description=__doc__)
    parser.add_argument("--output-dir", required=True)
    parser.add_argument("stems", nargs="+", metavar="STEM")
    args = parser.parse_args(argv)
    code = 0
    for stem in args.stems:
        try:
            print("\n".join(write(args.output_dir, stem)))
        except (OSError, ValueError, KeyError) as error:
            code = 1
            print(f"{_plain(stem)}: cannot be drawn: {_plain(str(error))}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
