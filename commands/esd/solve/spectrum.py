"""The ascending eigenvalues of WᵀW of a matrix W, computed in one of three ways. Picks no layer, fits nothing.

gram  float64 Gram matrix, summed up in blocks, and its eigenvalues. Agrees with float64 SVD to 3e-14 of the exponent on
      real weights. It resolves λ down to n·2e-16·λmax.
svd   singular values in float64, squared. Twice to three times the time and several times the memory.
fast  as gram, in float32. It resolves λ only down to some 1e-7·λmax, and counts noise once λmax is above about 100.
auto  gram; and svd where the Gram matrix cannot resolve the threshold.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gpusched.esd.gpu_memory import BLOCK_ROWS
from gpusched.esd.options import AnalysisOptions

from ..read.tensors import LazyTensor

PANEL = 96  # rows of the Gram matrix that one product makes
GPU_PANEL = 1024
_SMALL = 1024  # columns of a matrix
FARMS_WINDOWS = 10  # along a side; more only where it takes more to cover it
CONVOLUTION = 0.5  # of each eigenvalue: the matrices of a convolution count times √0.5

Floats = NDArray[np.float64]


class NotFinite(Exception):
    """The matrix holds NaN or Inf."""


class NotConverged(Exception):
    """The eigensolver gave up."""


@dataclass(frozen=True, slots=True)
class Spectrum:
    """All eigenvalues of one layer, ascending, none below 0, and how they were computed."""

    evals: Floats
    solver: str
    device: str
    note: str = ""


def spectrum(lazy: LazyTensor, options: AnalysisOptions, *, convolution: bool, device: torch.device) -> Spectrum:
    """Return the eigenvalues of all matrices of a layer together.

    A tensor that is one matrix is dropped as soon as its Gram matrix is made. Raises NotFinite, NotConverged, and
    PyTorch's errors for missing memory.
    """
    solver, note = options.solver, ""
    if solver != "svd":
        dtype = torch.float32 if solver == "fast" else torch.float64
        try:
            evals = _pooled(_by_gram(lazy, options, dtype, convolution, device))
            lost = _lost(evals, dtype) > options.evals_thresh
            if lost and solver == "auto":
                solver, note = "svd", f"λmax {evals[-1]:.3g} is too great for a Gram matrix to resolve the threshold"
            elif lost:
                note = f"λmax {evals[-1]:.3g} is too great for {solver} to resolve the threshold: noise may be counted"
        except NotConverged as error:
            solver, note = "svd", f"by way of the Gram matrix, {error}"
    if solver == "svd":
        parts = _parts(lazy.get(), options, convolution)
        evals = _pooled(_squared_singular_values(part, device) for part in parts)
    if convolution:
        evals = evals * CONVOLUTION
    return Spectrum(evals, "gram" if solver == "auto" else solver, str(device), note)


def _parts(tensor: torch.Tensor, options: AnalysisOptions, convolution: bool) -> list[torch.Tensor]:
    """Return the matrices of a layer: the tensor, or out×in for each kernel position of a convolution (out, in, k…)."""
    parts = [tensor]
    if convolution:
        parts = list(tensor.reshape(*tensor.shape[:2], -1).permute(2, 0, 1).unbind())
    return [window for part in parts for window in windows(part)] if options.farms else parts


def windows(matrix: torch.Tensor) -> list[torch.Tensor]:
    """Return overlapping square submatrices that cover a matrix; their side is half of its shorter side.

    FARMS: spectra of matrices of different aspect ratios differ in shape before any training, so that the spectra of
    submatrices of one aspect ratio are taken together instead (Hu, Goel, Killiakov, Yang: Eigenspectrum Analysis of
    Neural Networks without Aspect Ratio Bias, ICML 2025, PMLR 267:24290). Here the aspect ratio is 1, and windows lie
    half their side apart; along a side that takes more than ten of them so, further apart, at most side by side.
    """
    side = min(matrix.shape) // 2
    if side < 2:
        return [matrix]
    starts = [_starts(length, side) for length in matrix.shape]
    return [matrix[row : row + side, column : column + side] for row in starts[0] for column in starts[1]]


def _starts(length: int, side: int) -> list[int]:
    overlapping, touching = math.ceil((length - side) / (side / 2)) + 1, math.ceil(length / side)
    count = max(min(overlapping, FARMS_WINDOWS), touching)
    return [round(index * (length - side) / max(1, count - 1)) for index in range(count)]


def _by_gram(
    lazy: LazyTensor, options: AnalysisOptions, dtype: torch.dtype, convolution: bool, device: torch.device
) -> Iterator[Floats]:
    parts = _parts(lazy.get(), options, convolution)
    is_single = len(parts) == 1
    while parts:
        part = parts.pop()
        product = gram(part, dtype, device)
        if not bool(torch.isfinite(product.diagonal()).all()):
            _check(part)
            raise NotConverged("its entries overflow")
        del part  # nothing here holds the tensor any more
        if is_single:
            lazy.drop()
        try:
            values = _eigenvalues(product)
        except (torch.linalg.LinAlgError, np.linalg.LinAlgError) as error:
            raise NotConverged(str(error)) from None
        del product
        yield values.to("cpu", torch.float64).numpy()


def _eigenvalues(product: torch.Tensor) -> torch.Tensor:
    """Return the eigenvalues of the symmetric matrix with this lower triangle.

    One thread of NumPy's LAPACK takes 0.6 to 0.8 of the time of PyTorch's for small matrices, as measured on a CPU of
    AMD; a large matrix, and one that gets several threads, is PyTorch's.
    """
    is_small = product.device.type == "cpu" and len(product) <= _SMALL and torch.get_num_threads() == 1
    if is_small and "1" in (os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("OMP_NUM_THREADS")):
        return torch.from_numpy(np.linalg.eigvalsh(product.numpy()))
    values: torch.Tensor = torch.linalg.eigvalsh(product)
    return values


def gram(matrix: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the lower triangle of WᵀW or WWᵀ, whichever is smaller; the upper triangle has no meaning.

    One block of rows is converted at a time. Panel by panel up to the diagonal, so that half of the products are made.
    """
    rows, columns = matrix.shape
    tall = (matrix if rows >= columns else matrix.T).to(device, non_blocking=True)
    n = tall.shape[1]
    panel = PANEL if device.type == "cpu" else GPU_PANEL
    result = torch.zeros(n, n, dtype=dtype, device=device)
    room = torch.empty(min(BLOCK_ROWS, tall.shape[0]), n, dtype=dtype, device=device)  # fresh memory costs page faults
    for stored in tall.split(BLOCK_ROWS):
        block = room[: len(stored)].copy_(stored)
        for low in range(0, n, panel):
            high = low + panel
            result[low:high, :high].addmm_(block[:, low:high].T, block[:, :high])
    return result


def _lost(evals: Floats, dtype: torch.dtype) -> float:
    """Return the eigenvalue below which a Gram matrix in this precision holds only rounding errors.

    Cautious in float64, where a doubt costs a singular value decomposition; as measured in float32, where it is a note.
    """
    factor = len(evals) if dtype == torch.float64 else 1
    return float(factor * torch.finfo(dtype).eps * evals[-1])


def _pooled(parts: Iterable[Floats]) -> Floats:
    evals: Floats = np.concatenate(list(parts))
    np.maximum(evals, 0.0, out=evals)
    evals.sort()
    return evals


def _squared_singular_values(matrix: torch.Tensor, device: torch.device) -> Floats:
    _check(matrix)
    try:
        singular = torch.linalg.svdvals(matrix.to(device).to(torch.float64))
    except torch.linalg.LinAlgError as error:
        raise NotConverged(str(error)) from None
    values: Floats = singular.square().cpu().numpy()
    return values


def _check(matrix: torch.Tensor) -> None:
    """Raise NotFinite if an entry is no number."""
    for part in matrix.split(BLOCK_ROWS):
        entries = part.to(torch.float64)
        for word, is_so in (("NaN", torch.isnan), ("Inf", torch.isinf)):
            if bool(is_so(entries).any()):
                raise NotFinite(f"it holds {word}")
