"""The ascending eigenvalues of WᵀW of a matrix W, computed in one of three ways. Picks no layer, fits nothing.

gram  float64 Gram matrix, summed up in blocks, and its eigenvalues. Agrees with float64 SVD to 3e-14 of the exponent on
      real weights. It resolves λ down to n·2e-16·λmax.
svd   singular values in float64, squared. Twice to three times the time and several times the memory.
fast  as gram, in float32. It resolves λ only down to some 1e-7·λmax, and counts noise once λmax is above about 100.
auto  gram; and svd where the Gram matrix cannot resolve the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gpusched.esd.gpu_memory import BLOCK_ROWS
from gpusched.esd.options import AnalysisOptions

from .budget import LazyTensor
from .lapack import NotConverged, add_gram, eigenvalues

BLOCK = BLOCK_ROWS
SMALL_BLOCK = 64
FARMS_WINDOWS = 10  # along a side; more only where it takes more to cover it

CONVOLUTION = 0.5  # of each eigenvalue: the matrices of a convolution count times √0.5


class NotFinite(Exception):
    """The matrix holds NaN or Inf."""


@dataclass(frozen=True, slots=True)
class Spectrum:
    """All eigenvalues of one layer, ascending, none below 0, and how they were computed."""

    evals: NDArray[np.float64]
    solver: str
    device: str
    note: str = ""


def matrices(tensor: torch.Tensor, *, convolution: bool) -> list[torch.Tensor]:
    """Return the matrices of a layer: the tensor, or out×in for each kernel position of a convolution (out, in, k…)."""
    if not convolution:
        return [tensor]
    out, inner = tensor.shape[:2]
    return list(tensor.reshape(out, inner, -1).permute(2, 0, 1).unbind())


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


def spectrum(
    lazy: LazyTensor, options: AnalysisOptions, *, convolution: bool, device: torch.device, block: int = BLOCK
) -> Spectrum:
    """Return the eigenvalues of all matrices of a layer together.

    A tensor that is one matrix is dropped as soon as its Gram matrix is made. Raises NotFinite, NotConverged, and
    PyTorch's errors for missing memory.
    """
    solver, note = options.solver, ""
    if solver != "svd":
        dtype = torch.float32 if solver == "fast" else torch.float64
        try:
            evals = _pooled(_by_gram(lazy, options, dtype, convolution, device, block))
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
    parts = matrices(tensor, convolution=convolution)
    return [window for part in parts for window in windows(part)] if options.farms else parts


def _by_gram(
    lazy: LazyTensor, options: AnalysisOptions, dtype: torch.dtype, convolution: bool, device: torch.device, block: int
) -> Iterator[NDArray[np.float64]]:
    parts = _parts(lazy.get(), options, convolution)
    single = len(parts) == 1
    while parts:
        part = parts.pop()
        product = gram(part, dtype, device, block)
        if not bool(torch.isfinite(product.diagonal()).all()):
            _check(part)
            raise NotConverged("its entries overflow")
        del part  # nothing here holds the tensor any more
        if single:
            lazy.drop()
        values: NDArray[np.float64] = eigenvalues(product).to("cpu", torch.float64).numpy()
        del product
        yield values


def _lost(evals: NDArray[np.float64], dtype: torch.dtype) -> float:
    """Return the eigenvalue below which a Gram matrix in this precision holds only rounding errors.

    Cautious in float64, where a doubt costs a singular value decomposition; as measured in float32, where it is a note.
    """
    factor = len(evals) if dtype == torch.float64 else 1
    return float(factor * torch.finfo(dtype).eps * evals[-1])


def _pooled(parts: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    evals: NDArray[np.float64] = np.concatenate(list(parts))
    np.maximum(evals, 0.0, out=evals)
    evals.sort()
    return evals


def gram(matrix: torch.Tensor, dtype: torch.dtype, device: torch.device, block: int) -> torch.Tensor:
    """Return the lower triangle of WᵀW or WWᵀ, whichever is smaller, on `device`. One block is converted at a time."""
    rows, columns = matrix.shape
    tall = matrix if rows >= columns else matrix.T
    if block >= BLOCK:
        tall = tall.to(device, non_blocking=True)
    result = torch.zeros((min(rows, columns),) * 2, dtype=dtype, device=device)
    for part in tall.split(block):
        add_gram(result, part.to(device).to(dtype))
    return result


def _squared_singular_values(matrix: torch.Tensor, device: torch.device) -> NDArray[np.float64]:
    _check(matrix)
    try:
        singular = torch.linalg.svdvals(matrix.to(device).to(torch.float64))
    except torch.linalg.LinAlgError as error:
        raise NotConverged(str(error)) from None
    values: NDArray[np.float64] = singular.square().flip(0).cpu().numpy()
    return values


def _check(matrix: torch.Tensor) -> None:
    for part in matrix.split(BLOCK):
        part = part.float() if part.dtype.itemsize == 1 else part
        if not bool(torch.isfinite(part).all()):
            raise NotFinite("it holds NaN" if bool(torch.isnan(part).any()) else "it holds Inf")
