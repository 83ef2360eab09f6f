"""Make the table of one model: choose its layers, solve them, fit their spectra. Writes nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from gpusched.common.errors import GpuschedError
from gpusched.esd.model_record import SHUFFLED
from gpusched.esd.options import AnalysisOptions

from .adapt.change import ChangeSource
from .dequantise.plain_weights import have_same_content
from .fit.certainty import goodness_of_fit, interval
from .fit.marchenko_pastur import fit_bulk
from .fit.metrics import entropy, matrix_rank, norms
from .fit.power_law import fit_without_fingers, kept
from .read.tensors import ModelError, TensorSource
from .solve.cache import SpectraCache
from .solve.pipeline import Pipeline, Solved
from .solve.randomized import sides
from .solve.vectors import compare_vectors
from .weights.layers import Layer, Skip, choose_layers
from .weights.names import block_of, depth_order, is_embedding, kind_of
from .weights.packed import QUANTISED
from .write.results import Row, Table, warning_of

_LEAST_EVALS = 50  # of a change: an exponent of fewer says nothing


class NoDevice(Exception):
    """The requested device does not exist here."""


def choose_device(name: str) -> torch.device:
    """Return the device of this name; for auto, the GPU if there is one. Raises NoDevice, or GpuschedError."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.backends.cuda.is_built():
        raise GpuschedError("this PyTorch is built without CUDA", hint="install one that has it, or use --device cpu")
    device = torch.device("cuda" if name == "auto" else name)
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise NoDevice(str(error).partition("\n")[0]) from None
    return torch.device("cuda", device.index if device.index is not None else torch.cuda.current_device())


def idle_gpu(device: torch.device, environ: Mapping[str, str]) -> list[str]:
    """Return the warning about a job that computes on the CPU while it holds a real GPU."""
    holds_gpu = environ.get("GPUSCHED_JOB_ID") and environ.get("CUDA_VISIBLE_DEVICES")
    if device.type != "cpu" or not holds_gpu or "GPUSCHED_SIMULATION" in environ:
        return []
    return ["warning: it held a GPU and ran on the CPU, since this PyTorch finds no CUDA; --device cpu takes no GPU"]


def analyse(
    source: TensorSource,
    options: AnalysisOptions,
    device: torch.device,
    *,
    cache: SpectraCache | None = None,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
    labels: Mapping[str, Any] = MappingProxyType({}),
) -> Table:
    """Return the table of a model. `on_progress` gets the number of layers that are done, and of all.

    `labels`: the columns of all rows that say which model it is. Raises ModelError for a damaged file, and for packed
    weights that are not dequantised; Poisoned for a card that this process can no longer use.
    """
    infos = source.infos()
    is_same = partial(have_same_content, source)
    layers, skips = choose_layers(infos, source.config, options, _embeddings(source), is_same)
    _refuse_packed(layers, skips)
    total = len(layers)
    on_progress(0, total)
    pipeline = Pipeline(source, layers, options, device, cache=cache, on_done=lambda done: on_progress(done, total))
    results = pipeline.run()
    make = make_change_row if options.wants_change else make_row
    labels = {**labels, "delta_base": getattr(source, "base_name", "")}
    rows: list[Row] = []
    spectra = {}
    for layer, result in zip(layers, results, strict=True):
        if isinstance(result, Solved):
            more = _compare_vectors(source, layer, device) if options.delta_vectors else {}
            rows.append(make(layer, result, options, {"layer_id": len(rows), **labels, **more}))
            spectra[layer.name] = result.spectrum.evals
            if result.chance:
                spectra[layer.name + SHUFFLED] = result.chance.evals
        else:
            name = layer.tensor.name if layer.expert is None else layer.name
            skips.append(Skip(replace(layer.tensor, name=name, shape=layer.shape), result, layer.elements))
    order = depth_order(skip.tensor.name for skip in skips)
    skips.sort(key=lambda skip: order[skip.tensor.name])
    return Table(rows, skips, spectra, source.notes)


def _compare_vectors(source: TensorSource, layer: Layer, device: torch.device) -> Mapping[str, Any]:
    """Return the columns of the singular vectors of a matrix; of a convolution, none."""
    if layer.convolution or not isinstance(source, ChangeSource):
        return {}
    return compare_vectors(*source.before_and_after(layer.tensor.name, layer.expert), device)


def _embeddings(source: TensorSource) -> set[str]:
    """Return the tensors that are embeddings by their type, or by another name under which they are stored too."""
    shared: Mapping[str, str] = getattr(source, "shared", {})
    by_type = {shared.get(name, name) for name in getattr(source, "embeddings", ())}
    return by_type | {kept for name, kept in shared.items() if is_embedding(name, (2, 2))}


def _refuse_packed(layers: Sequence[Layer], skips: Sequence[Skip]) -> None:
    """Raise ModelError if more of a model is packed in a way that is not dequantised than can be analysed."""
    packed = [skip for skip in skips if skip.missing and skip.reason.startswith(QUANTISED)]
    if packed and sum(skip.missing for skip in packed) > sum(layer.elements for layer in layers):
        first = max(packed, key=lambda skip: skip.missing)
        problem = f"{len(packed)} of its weights are {first.reason}, such as {first.tensor.name}"
        remedy = "analyse the model in full precision"
        raise ModelError("analyse", f"{problem}, which is not dequantised here; {remedy}")


def make_row(layer: Layer, solved: Solved, options: AnalysisOptions, labels: Mapping[str, Any]) -> Row:
    """Return the row of one layer: the fit and the measures of its spectrum."""
    evals = kept(solved.spectrum.evals, options.evals_thresh)
    rounding = float(torch.finfo(getattr(torch, layer.tensor.dtype)).eps)
    law, fingers = fit_without_fingers(evals, options, rounding)
    fitted = evals[: len(evals) - fingers]
    rank = matrix_rank(evals, max(layer.matrix))
    rows, columns = layer.matrix
    more: dict[str, Any] = {**norms(evals, law.alpha), **interval(fitted, law), **labels}
    more |= fit_bulk(solved.spectrum.evals, *sides(layer, farms=options.farms))
    if solved.chance is not None and solved.bulk is not None:
        more["rand_xmax"] = float(solved.chance.evals[-1])
        more["rand_bulk_min"], more["rand_bulk_max"] = solved.bulk
        more["rand_num_spikes"] = int(np.count_nonzero(evals > solved.bulk[1]))
    return Row(
        longname=layer.name,
        block=block_of(layer.name),
        kind=kind_of(layer.name, convolution=layer.convolution),
        shape="x".join(map(str, layer.shape)),
        dtype=layer.tensor.packing or layer.tensor.dtype,
        M=rows,
        N=columns,
        Q=max(rows, columns) / min(rows, columns),
        params=layer.elements,
        alpha=law.alpha,
        D=law.D,
        fit_xmin=law.xmin,
        n_tail=law.n_tail,
        fit_status=law.status,
        num_pl_spikes=law.n_tail,
        warning=warning_of(law.alpha),
        xmin=float(evals[0]),
        xmax=float(evals[-1]),
        matrix_rank=rank,
        rank_loss=max(0, min(rows, columns) - rank),
        entropy=entropy(evals, rank),
        num_evals=len(evals),
        raw_num_evals=len(solved.spectrum.evals),
        solver=solved.spectrum.solver,
        device=solved.spectrum.device,
        note=solved.spectrum.note,
        p_value=goodness_of_fit(fitted, law, options) if options.fit_tests else math.nan,
        num_fingers=fingers,
        **more,
    )


def make_change_row(layer: Layer, solved: Solved, options: AnalysisOptions, labels: Mapping[str, Any]) -> Row:
    """Return the row of a change: what a Gram matrix resolves of it counts, and few values get no exponent."""
    evals = solved.spectrum.evals
    threshold = len(evals) * float(np.finfo(np.float64).eps) * float(evals[-1])
    least = max(options.min_evals, _LEAST_EVALS)
    row = make_row(layer, solved, replace(options, evals_thresh=threshold, min_evals=least), labels)
    return replace(row, delta_norm=math.sqrt(row.norm), fit_status=row.fit_status if row.norm else "unchanged")


def count_dtypes(source: TensorSource) -> dict[str, dict[str, int]]:
    """Return the number of tensors and of their elements by type, for two dimensions and more; largest first."""
    tensors: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for info in source.infos():
        if len(info.shape) > 1:
            tensors[info.dtype] += 1
            elements[info.dtype] += info.elements
    return {dtype: {"tensors": tensors[dtype], "elements": count} for dtype, count in elements.most_common()}
