"""Draw the results of one model: alpha by layer, and the spectra with their fitted tails. Analyses nothing."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpusched.common.option_table import options_of
from gpusched.esd.model_record import SHUFFLED, SPECTRA, TABLES, model_name, read_record
from gpusched.esd.options import AnalysisOptions

from ..fit.marchenko_pastur import density_of_law
from ..fit.power_law import fit_without_fingers, kept
from .files import write_file

PLOTS = "plots"
COLUMNS, ROWS = 5, 8  # spectra on one page
BINS = 40
DPI = 110
MOST_PAGES = 40

_TAIL, _LAW, _GREY, _INK, _BULK = "#3572b0", "#c2453d", "#9aa4af", "#1b1f24", "#009e73"
_USUAL = (2.0, 6.0)  # where the exponents of well-trained layers mostly lie (Martin, Peng, Mahoney 2021)
_LARGEST = 1e300  # of an eigenvalue that can be drawn
_NUMBERS = ("alpha", "D", "fit_xmin", "n_tail", "num_evals")
_KINDS, _OTHERS = 8, "others"  # of layers, each with a colour

Layer = Mapping[str, str]  # a row of the table of a model


def kind_of(layer: Layer) -> str:
    """Return the name of a layer in its block: mlp.up_proj of model.layers.3.mlp.up_proj.weight."""
    return re.sub(r"^.*\.\d+\.", "", layer["longname"].removesuffix(".weight"))


def number(layer: Layer, column: str) -> float:
    """Return a number of a layer; NaN if there is none."""
    return float(layer[column] or "nan")


def write(output_dir: str, stem: str) -> list[str]:
    """Draw the plots of one model; return their paths. Raises OSError or ValueError if its table cannot be read."""
    title = model_name(stem)
    folder = Path(output_dir, PLOTS)
    for page in folder.glob(f"{stem}-esd*.png"):  # an earlier analysis may have had more layers
        if re.fullmatch(r"-esd(-\d+)?\.png", page.name.removeprefix(stem)):
            page.unlink()
    paths = []
    with np.load(f"{output_dir}/{SPECTRA}/{stem}.npz", allow_pickle=False) as spectra:
        layers = _read_layers(output_dir, stem, spectra)
        for number, figure in enumerate(_pages(title, layers, spectra), 1):
            paths.append(_save(figure, folder / f"{stem}-esd{f'-{number}' if number > 1 else ''}.png"))
    # The alphas are drawn last: a model that has them counts as drawn.
    return [_save(alpha_figure(title, layers), folder / f"{stem}-alpha.png"), *paths]


def _read_layers(output_dir: str, stem: str, spectra: Mapping[str, NDArray[np.float64]]) -> list[Layer]:
    """Return the rows of the table of a model; the fits of one in the columns of another tool are computed again.

    Raises ValueError for a field that is no number, with its line.
    """
    path = Path(output_dir, TABLES, f"{stem}.csv")
    with path.open(encoding="utf-8", newline="") as file:
        layers: list[Layer] = list(csv.DictReader(file))
    if layers and "fit_xmin" not in layers[0]:
        settings = read_record(output_dir, stem)["options"]
        names = {each.name for each in options_of(AnalysisOptions)} & set(settings)
        options = AnalysisOptions(**{name: settings[name] for name in names})
        return [_refit(layer["longname"], spectra[layer["longname"]], options) for layer in layers]
    for line, layer in enumerate(layers, 2):
        for column in _NUMBERS:
            try:
                number(layer, column)
            except (ValueError, TypeError):
                raise ValueError(f"{path}, line {line}: {column} is no number: {str(layer[column])[:40]!r}") from None
    return layers


def _refit(name: str, evals: NDArray[np.float64], options: AnalysisOptions) -> Layer:
    values = kept(evals, options.evals_thresh)
    law, _ = fit_without_fingers(values, options)
    numbers = {"alpha": law.alpha, "D": law.D, "fit_xmin": law.xmin, "n_tail": law.n_tail, "num_evals": len(values)}
    return {"longname": name, **{column: str(value) for column, value in numbers.items()}}


def alpha_figure(title: str, layers: Sequence[Layer]) -> Any:
    """Draw the exponent of each layer, coloured by the kind of the layer."""
    from matplotlib.figure import Figure

    title = _plain(title)
    figure = Figure(figsize=(min(16.0, 5.0 + 0.06 * len(layers)), 4.4), layout="constrained")
    axes = figure.add_subplot()
    values = np.array([number(layer, "alpha") for layer in layers])
    finite = values[np.isfinite(values)]
    # A few layers far above the others do not flatten them: they lie on the upper edge.
    top = max(6.6, min(finite.max(), 1.6 * np.quantile(finite, 0.95))) if len(finite) else 6.6
    kinds = [kind_of(layer) for layer in layers]
    common = [kind for kind, _ in Counter(kinds).most_common(_KINDS)]
    shown = np.array([kind if kind in common else _OTHERS for kind in kinds])
    axes.axhspan(*_USUAL, color=_GREY, alpha=0.13, linewidth=0)
    for kind in dict.fromkeys((*common, *shown)):
        (places,) = np.nonzero(shown == kind)
        axes.plot(places, np.minimum(values[places], top), "o", markersize=4.5, clip_on=False, label=_plain(kind))
    axes.set_ylim(min(1.0, finite.min() - 0.2) if len(finite) else 1.0, top * 1.04)
    above = int((finite > top).sum())
    axes.set_xlabel(
        "layer, by depth" + (f"; {above} on the upper edge are greater, up to {finite.max():.3g}" if above else "")
    )
    axes.set_ylabel("α")
    middle = f", median α {np.median(finite):.2f}" if len(finite) else ""
    axes.set_title(f"{title}: {len(layers)} layers, {len(finite)} with a fit{middle}", loc="left", fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=8)
    return figure


def _pages(title: str, layers: Sequence[Layer], spectra: Any) -> Iterator[Any]:
    """Draw pages of log-log histograms, one for each layer."""
    from matplotlib.figure import Figure

    size = COLUMNS * ROWS
    for start in range(0, min(len(layers), MOST_PAGES * size), size):
        page = layers[start : start + size]
        rows, columns = -(-len(page) // COLUMNS), min(COLUMNS, len(page))
        figure = Figure(figsize=(2.9 * columns, 2.15 * rows + 0.35), layout="constrained")
        figure.suptitle(
            f"{_plain(title)}: density of eigenvalues, the power law from xmin on, and the random bulk", fontsize=10
        )
        fields = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, layer in zip(fields, page, strict=False):
            name = layer["longname"]
            axes.set_title(_plain(name.removesuffix(".weight")[-42:]), loc="left", fontsize=7)
            axes.tick_params(labelsize=6)
            own, chance = (spectra[key] if key in spectra else np.empty(0) for key in (name, name + SHUFFLED))
            _draw_spectrum(axes, layer, own, chance)
        for axes in fields[len(page) :]:
            axes.set_axis_off()
        yield figure


def _draw_spectrum(axes: Any, layer: Layer, values: NDArray[np.float64], chance: NDArray[np.float64]) -> None:
    """Draw the histogram of one spectrum with tail, power law and xmin, the random bulk, and the shuffled spectrum."""
    shown = np.sort(values[values > 0])[-int(layer["num_evals"]) :]
    if not len(shown) or not shown[-1] < _LARGEST:
        axes.text(0.5, 0.5, "no finite spectrum", ha="center", va="center", transform=axes.transAxes, fontsize=7)
        axes.set_axis_off()
        return
    edges = np.geomspace(shown[0] * 0.95, shown[-1] * 1.05, BINS + 1)
    density, _ = np.histogram(shown, edges, density=True)
    floor = density[density > 0].min() / 2
    density = np.maximum(density, floor)
    axes.stairs(density, edges, baseline=floor, fill=True, color=_GREY)
    note = "no fit"
    alpha, xmin = number(layer, "alpha"), number(layer, "fit_xmin")
    if alpha > 1 and xmin > 0:
        note = f"α {alpha:.2f}  D {number(layer, 'D'):.3f}"
        first = min(int(np.searchsorted(edges, xmin)), BINS - 1)
        axes.stairs(density[first:], edges[first:], baseline=floor, fill=True, color=_TAIL)
        ends = np.array([xmin, shown[-1]])
        law = int(layer["n_tail"]) / len(shown) * (alpha - 1) / xmin * (ends / xmin) ** -alpha
        axes.plot(ends, law, color=_LAW, linewidth=1.3)
        axes.axvline(xmin, color=_INK, linewidth=0.8, linestyle="--")
    low, high = (float(layer.get(name) or "nan") for name in ("mp_bulk_min", "mp_bulk_max"))
    if high > low:
        law = density_of_law(middles := np.sqrt(edges[1:] * edges[:-1]), low, high) * len(values) / len(shown)
        axes.plot(middles, np.where(law > floor, law, np.nan), color=_BULK, linewidth=1.1)
        note += f"\n{layer['mp_num_spikes']} spikes"
    if len(chance):
        density, _ = np.histogram(chance, edges)
        density = density / np.diff(edges) / len(shown)
        axes.stairs(np.maximum(density, floor), edges, baseline=floor, color=_INK, linewidth=0.6)
    axes.text(0.98, 0.97, note, ha="right", va="top", transform=axes.transAxes, fontsize=6.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bottom=floor)


def _plain(text: str) -> str:
    """Return text for a plot: no formula, no character that cannot be printed."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")


def _save(figure: Any, path: Path) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=DPI, metadata={"Software": None})
    write_file(path, data.getvalue())
    return str(path)
