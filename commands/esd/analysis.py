"""One model -> its table: the layers planned, their spectra solved and fitted. Writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .fit.metrics import entropy, matrix_rank, norms
from .fit.power_law import fit, kept
from .options import Options
from .read.layers import Layer, Skip, plan
from .read.tensors import TensorInfo, TensorSource
from .solve.cache import SpectraCache
from .solve.pipeline import Pipeline, Solved
from .write.results import Row, Table


class NoDevice(Exception):
    """The device that was asked for is not there."""


class NoCuda(NoDevice):
    """This PyTorch can use no GPU, here or anywhere."""


@dataclass(frozen=True, slots=True)
class Types:
    """How many tensors and numbers of a type a model stores."""

    tensors: int
    elements: int


def choose_device(wanted: str) -> torch.device:
    """The device of this name; for auto, the GPU if there is one. NoCuda, or NoDevice in PyTorch's words."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.backends.cuda.is_built():
        raise NoCuda("this PyTorch is built without CUDA; install one that has it, or give --device cpu")
    device = torch.device("cuda" if wanted == "auto" else wanted)
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise NoDevice(str(error).partition("\n")[0]) from None
    return torch.device("cuda", device.index if device.index is not None else torch.cuda.current_device())


def analyse(
    source: TensorSource,
    options: Options,
    device: torch.device,
    *,
    cache: SpectraCache | None = None,
    on_progress: Callable[[int, int], object] = lambda done, total: None,
) -> Table:
    """The table of a model. `on_progress` is told layers done and layers in all.

    Raises ModelError for a file that fails, memory.Poisoned for a card that has to be left.
    """
    layers, skips = plan(source.infos(), source.config, options, getattr(source, "embeddings", ()))
    on_progress(0, len(layers))
    with _full_precision():
        found = Pipeline(
            source,
            layers,
            options,
            device,
            cache=cache,
            on_done=lambda done: on_progress(done, len(layers)),
        ).run()
    rows, spectra = [], {}
    for layer, result in zip(layers, found, strict=True):
        if isinstance(result, Solved):
            rows.append(row(layer, result, options))
            spectra[layer.name] = result.spectrum.evals
        else:
            skips.append(Skip(_named(layer), result))
    order = {info.name: place for place, info in enumerate(source.infos())}
    skips.sort(key=lambda skip: order.get(skip.tensor.name, order.get(skip.tensor.name.rpartition("[")[0], 0)))
    return Table(rows, skips, spectra, source.notes)


def row(layer: Layer, solved: Solved, options: Options) -> Row:
    """What is said of one layer."""
    evals = kept(solved.spectrum.evals, options.evals_thresh)
    found = fit(evals, options)
    rank = matrix_rank(evals, max(layer.matrix))
    more: dict[str, Any] = dict(norms(evals, found.alpha))
    if solved.chance is not None and solved.bulk is not None:
        more["rand_xmax"] = float(solved.chance.evals[-1])
        more["rand_bulk_min"], more["rand_bulk_max"] = solved.bulk
        more["rand_num_spikes"] = int(np.count_nonzero(evals > solved.bulk[1]))
    return Row(
        longname=layer.name,
        shape="x".join(map(str, layer.shape)),
        dtype=layer.tensor.dtype,
        alpha=found.alpha,
        D=found.D,
        fit_xmin=found.xmin,
        n_tail=found.n_tail,
        fit_status=found.status,
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


def dtypes(source: TensorSource) -> dict[str, Types]:
    """The types that a model's tensors of two and more dimensions are stored in, most numbers first."""
    tensors: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    for info in source.infos():
        if len(info.shape) > 1:
            tensors[info.dtype] += 1
            elements[info.dtype] += info.elements
    return {dtype: Types(tensors[dtype], count) for dtype, count in elements.most_common()}


def _named(layer: Layer) -> TensorInfo:
    return TensorInfo(layer.name, layer.shape, layer.tensor.dtype, layer.tensor.file)


@contextmanager
def _full_precision() -> Iterator[None]:
    """No TF32 in a product of matrices, whatever the process has chosen."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
