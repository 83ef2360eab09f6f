"""Draw the results of one model: alpha by layer, and the spectra with their fitted tails. Analyses nothing.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; lines differ in their dashes too.
"""

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
from gpusched.esd.model_record import (
    MOST_FIGURES,
    PLOTS,
    SHUFFLED,
    SPECTRA,
    TABLES,
    layer_picture,
    model_name,
    read_record,
)
from gpusched.esd.options import AnalysisOptions

from ..fit.marchenko_pastur import density_of_law
from ..fit.power_law import fit_without_fingers, kept
from .files import write_file

COLUMNS, ROWS = 5, 8  # spectra on one page
BINS = 40
DPI = 110
MOST_PAGES = 40
FORMATS = ("png", "pdf", "svg")
_SETTINGS = {"pdf.fonttype": 42, "svg.hashsalt": "gpusched", "font.size": 8.0, "axes.titlesize": 8.5}

_TAIL, _LAW, _BULK, _GREY, _INK = "#0072b2", "#d55e00", "#009e73", "#9aa4af", "#1b1f24"
_COLOURS = (_TAIL, _LAW, _BULK, "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", _INK)
_MARKERS = "os^DvP*X"
_USUAL = (2.0, 6.0)  # where the exponents of well-trained layers mostly lie (Martin, Peng, Mahoney 2021)
_LARGEST = 1e300  # of an eigenvalue that can be drawn
_NUMBERS = ("alpha", "D", "fit_xmin", "n_tail", "num_evals")
_KINDS, _OTHERS = 8, "others"  # of layers, each with a colour
_WIDTH, _WIDEST = 7.0, 16.0  # of the figure of alphas, in inches: of 100 layers, and at most
_LAYER_SIZE = (3.6, 3.0)  # inches: a column of a paper

Layer = Mapping[str, str]  # a row of the table of a model
Floats = NDArray[np.float64]


def kind_of(layer: Layer) -> str:
    """Return the name of a layer in its block: mlp.up_proj of model.layers.3.mlp.up_proj.weight."""
    return re.sub(r"^.*\.\d+\.", "", layer["longname"].removesuffix(".weight"))


def number(layer: Layer, column: str) -> float:
    """Return a number of a layer; NaN if there is none."""
    return float(layer[column] or "nan")


def write(output_dir: str, stem: str, wanted: bool | str = True) -> list[str]:
    """Draw the plots of one model; return their paths. `wanted`: a pattern of layers that get figures of their own.

    Raises OSError or ValueError if its table cannot be read.
    """
    import matplotlib as mpl

    title = model_name(stem)
    folder = Path(output_dir, PLOTS)
    for page in folder.glob(f"{stem}-esd*.png"):  # an earlier analysis may have had more layers
        if re.fullmatch(r"-esd(-\d+)?\.png", page.name.removeprefix(stem)):
            page.unlink()
    paths = []
    with mpl.rc_context(_SETTINGS), np.load(f"{output_dir}/{SPECTRA}/{stem}.npz", allow_pickle=False) as spectra:
        layers = _read_layers(output_dir, stem, spectra)
        for count, figure in enumerate(_pages(title, layers, spectra), 1):
            paths += _save(figure, folder / f"{stem}-esd{f'-{count}' if count > 1 else ''}", FORMATS[:1])
        chosen = [each for each in layers if isinstance(wanted, str) and re.search(wanted, each["longname"])]
        for layer in chosen[:MOST_FIGURES]:
            paths += _save(layer_figure(layer, spectra), folder / layer_picture(stem, layer["longname"]), FORMATS)
        # The alphas are drawn last: a model that has them counts as drawn.
        return [*_save(alpha_figure(title, layers), folder / f"{stem}-alpha", FORMATS), *paths]


def _read_layers(output_dir: str, stem: str, spectra: Mapping[str, Floats]) -> list[Layer]:
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


def _refit(name: str, evals: Floats, options: AnalysisOptions) -> Layer:
    values = kept(evals, options.evals_thresh)
    law, _ = fit_without_fingers(values, options)
    numbers = {"alpha": law.alpha, "D": law.D, "fit_xmin": law.xmin, "n_tail": law.n_tail, "num_evals": len(values)}
    return {"longname": name, **{column: str(value) for column, value in numbers.items()}}


def alpha_figure(title: str, layers: Sequence[Layer]) -> Any:
    """Draw the exponent of each layer, with a colour and a marker for each kind of layer."""
    from matplotlib.figure import Figure

    title, total = _plain(title), max(1, len(layers))
    width = min(_WIDEST, max(_WIDTH, _WIDTH * total / 100))
    figure = Figure(figsize=(width, 3.6), layout="constrained")
    axes = figure.add_subplot()
    values = np.array([number(layer, "alpha") for layer in layers])
    finite = values[np.isfinite(values)]
    # A few layers far above the others do not flatten them: they lie on the upper edge.
    top = max(6.6, min(finite.max(), 1.6 * np.quantile(finite, 0.95))) if len(finite) else 6.6
    kinds = [kind_of(layer) for layer in layers]
    common = [kind for kind, _ in Counter(kinds).most_common(_KINDS - 1)]
    shown = np.array([kind if kind in common else _OTHERS for kind in kinds])
    axes.axhspan(*_USUAL, color=_GREY, alpha=0.13, linewidth=0)
    size = min(4.5, max(1.5, 0.65 * width * 72 / total))  # no wider than the way from one layer to the next
    for n, kind in enumerate(dict.fromkeys((*common, *shown))):
        (places,) = np.nonzero(shown == kind)
        style: dict[str, Any] = {"color": _COLOURS[n], "marker": _MARKERS[n], "markersize": size, "markeredgewidth": 0}
        axes.plot(places, np.minimum(values[places], top), linestyle="", clip_on=False, label=_plain(kind), **style)
    axes.set_ylim(min(1.0, finite.min() - 0.2) if len(finite) else 1.0, top * 1.04)
    above = int((finite > top).sum())
    axes.set_xlabel(
        "layer, by depth" + (f"; {above} on the upper edge are greater, up to {finite.max():.3g}" if above else "")
    )
    axes.set_ylabel("exponent α")
    middle = f", median α {np.median(finite):.2f}" if len(finite) else ""
    axes.set_title(f"{title}: {len(layers)} layers, {len(finite)} with a fit{middle}", loc="left")
    figure.legend(loc="outside right upper", frameon=False, markerscale=4.5 / size)
    return figure


def layer_figure(layer: Layer, spectra: Mapping[str, Floats]) -> Any:
    """Draw the spectrum of one layer, in the size of a column of a paper."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_LAYER_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(_plain(layer["longname"][-60:]), loc="left")
    _draw_spectrum(axes, layer, spectra)
    axes.set_xlabel("eigenvalue λ of WᵀW (unit: weight²)")
    axes.set_ylabel("probability density (1/weight²)")
    figure.legend(*_handles([axes]), loc="outside lower center", ncols=3, frameon=False, fontsize=7)
    return figure


def _pages(title: str, layers: Sequence[Layer], spectra: Mapping[str, Floats]) -> Iterator[Any]:
    """Draw pages of log-log histograms, one for each layer."""
    from matplotlib.figure import Figure

    size = COLUMNS * ROWS
    for start in range(0, min(len(layers), MOST_PAGES * size), size):
        page = layers[start : start + size]
        rows, columns = -(-len(page) // COLUMNS), min(COLUMNS, len(page))
        figure = Figure(figsize=(max(4.5, 2.9 * columns), 2.15 * rows + 0.75), layout="constrained")
        figure.suptitle(_plain(title), fontsize=10)
        figure.supxlabel("eigenvalue λ of WᵀW", fontsize=8)
        figure.supylabel("probability density", fontsize=8)
        fields = list(figure.subplots(rows, columns, squeeze=False).ravel())
        for axes, layer in zip(fields, page, strict=False):
            axes.set_title(_plain(layer["longname"].removesuffix(".weight")[-42:]), loc="left", fontsize=7)
            axes.tick_params(labelsize=6)
            _draw_spectrum(axes, layer, spectra)
        for axes in fields[len(page) :]:
            axes.set_axis_off()
        figure.legend(*_handles(fields), loc="outside upper right", ncols=6, frameon=False, fontsize=7)
        yield figure


def _handles(fields: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Return what a legend of all these axes shows, each once, and its labels."""
    handles = {label: each for axes in fields for each, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    return list(handles.values()), list(handles)


def _draw_spectrum(axes: Any, layer: Layer, spectra: Mapping[str, Floats]) -> None:
    """Draw the histogram of one spectrum with tail, power law and xmin, the random bulk, and the shuffled spectrum."""
    name = layer["longname"]
    values, chance = (spectra[key] if key in spectra else np.empty(0) for key in (name, name + SHUFFLED))
    shown = np.sort(values[values > 0])[-int(layer["num_evals"]) :]
    if not len(shown) or not shown[-1] < _LARGEST:
        axes.text(0.5, 0.5, "no finite spectrum", ha="center", va="center", transform=axes.transAxes, fontsize=7)
        axes.set_axis_off()
        return
    edges = np.geomspace(shown[0] * 0.95, shown[-1] * 1.05, BINS + 1)
    density, _ = np.histogram(shown, edges, density=True)
    floor = density[density > 0].min() / 2
    density = np.maximum(density, floor)
    axes.stairs(density, edges, baseline=floor, fill=True, color=_GREY, label="below xmin")
    note = "no fit"
    alpha, xmin = number(layer, "alpha"), number(layer, "fit_xmin")
    if alpha > 1 and xmin > 0:
        note = f"α {alpha:.2f}  D {number(layer, 'D'):.3f}"
        first = min(int(np.searchsorted(edges, xmin)), BINS - 1)
        axes.stairs(density[first:], edges[first:], baseline=floor, fill=True, color=_TAIL, label="tail")
        ends = np.array([xmin, shown[-1]])
        law = int(layer["n_tail"]) / len(shown) * (alpha - 1) / xmin * (ends / xmin) ** -alpha
        axes.plot(ends, law, color=_LAW, linewidth=1.5, label="power law")
        axes.axvline(xmin, color=_INK, linewidth=0.8, linestyle="--", label="xmin")
    low, high = (float(layer.get(name) or "nan") for name in ("mp_bulk_min", "mp_bulk_max"))
    if high > low:
        law = density_of_law(middles := np.sqrt(edges[1:] * edges[:-1]), low, high) * len(values) / len(shown)
        shape = np.where(law > floor, law, np.nan)
        axes.plot(middles, shape, color=_BULK, linewidth=1.3, linestyle="-.", label="random bulk")
        note += f"\n{layer['mp_num_spikes']} spikes"
    if len(chance):
        density, _ = np.histogram(chance, edges)
        density = np.maximum(density / np.diff(edges) / len(shown), floor)
        axes.stairs(density, edges, baseline=floor, color=_INK, linewidth=0.6, label="shuffled entries")
    axes.text(0.98, 0.97, note, ha="right", va="top", transform=axes.transAxes, fontsize=6.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bottom=floor)


def _plain(text: str) -> str:
    """Return text for a plot: no formula, no character that cannot be printed."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")


def _save(figure: Any, path: Path, formats: Sequence[str]) -> list[str]:
    """Write a figure in these formats; the same figure has the same bytes. Return the paths."""
    paths = []
    for suffix in formats:
        data = io.BytesIO()
        when = {"png": "Software", "pdf": "CreationDate", "svg": "Date"}[suffix]
        figure.savefig(data, format=suffix, dpi=DPI, metadata={when: None})
        figure.set_layout_engine("none")  # it is laid out: the next format need not do it again
        paths.append(f"{path}.{suffix}")
        write_file(Path(paths[-1]), data.getvalue())
    return paths
