"""Make the table of one model: choose its layers, solve them, fit their spectra. Writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gpusched.common.errors import GpuschedError
from gpusched.esd.options import AnalysisOptions

from .fit.metrics import entropy, matrix_rank, norms
from .fit.power_law import fit, kept
from .read.layers import Layer, Skip, choose_layers
from .read.tensors import TensorInfo, TensorSource
from .solve.cache import SpectraCache
from .solve.pipeline import Pipeline, Solved
from .write.results import Row, Table


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


def analyse(
    source: TensorSource,
    options: AnalysisOptions,
    device: torch.device,
    *,
    cache: SpectraCache | None = None,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> Table:
    """Return the table of a model. `on_progress` gets the number of layers that are done, and of all.

    Raises ModelError for a damaged file, Poisoned for a card that this process can no longer use.
    """
    layers, skips = choose_layers(source.infos(), source.config, options, getattr(source, "embeddings", ()))
    skips = [_compared(skip, source) for skip in skips]
    total = len(layers)
    on_progress(0, total)
    pipeline = Pipeline(source, layers, options, device, cache=cache, on_done=lambda done: on_progress(done, total))
    results = pipeline.run()
    rows, spectra = [], {}
    for layer, result in zip(layers, results, strict=True):
        if isinstance(result, Solved):
            rows.append(make_row(layer, result, options))
            spectra[layer.name] = result.spectrum.evals
        else:
            info = TensorInfo(layer.name, layer.shape, layer.tensor.dtype, layer.tensor.file)
            skips.append(Skip(info, result))
    order = {info.name: index for index, info in enumerate(source.infos())}
    skips.sort(key=lambda skip: order.get(skip.tensor.name, order.get(skip.tensor.name.rpartition("[")[0], 0)))
    return Table(rows, skips, spectra, source.notes)


def _compared(skip: Skip, source: TensorSource) -> Skip:
    """Return why a tied head is skipped: what is stored may be another matrix than the one that the model uses."""
    if not skip.twin:
        return skip
    head, twin = (source.read(name).contiguous().view(torch.uint8) for name in (skip.tensor.name, skip.twin))
    if torch.equal(head, twin):
        return skip
    return replace(skip, reason=f"stored, and different from {skip.twin}, which config.json puts in its place")


def make_row(layer: Layer, solved: Solved, options: AnalysisOptions) -> Row:
    """Return the row of one layer: the fit and the measures of its spectrum."""
    evals = kept(solved.spectrum.evals, options.evals_thresh)
    law = fit(evals, options)
    rank = matrix_rank(evals, max(layer.matrix))
    more: dict[str, Any] = dict(norms(evals, law.alpha))
    if solved.chance is not None and solved.bulk is not None:
        more["rand_xmax"] = float(solved.chance.evals[-1])
        more["rand_bulk_min"], more["rand_bulk_max"] = solved.bulk
        more["rand_num_spikes"] = int(np.count_nonzero(evals > solved.bulk[1]))
    return Row(
        longname=layer.name,
        shape="x".join(map(str, layer.shape)),
        dtype=layer.tensor.dtype,
        alpha=law.alpha,
        D=law.D,
        fit_xmin=law.xmin,
        n_tail=law.n_tail,
        fit_status=law.status,
        xmin=float(evals[0]),
        xmax=float(evals[-1]),
        matrix_rank=rank,
        entropy=entropy(evals, rank),
        num_evals=len(evals),
        raw_num_evals=len(solved.spectrum.evals),
        solver=solved.spectrum.solver,
        device=solved.spectrum.device,
        note=solved.spectrum.note,
        **more,
    )


def count_dtypes(source: TensorSource) -> dict[str, dict[str, int]]:
    """Return the number of tensors and of their elements by type, for two dimensions and more; largest first."""
    tensors: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for info in source.infos():
        if len(info.shape) > 1:
            tensors[info.dtype] += 1
            elements[info.dtype] += info.elements
    return {dtype: {"tensors": tensors[dtype], "elements": count} for dtype, count in elements.most_common()}
