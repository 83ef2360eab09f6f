"""A matrix -> the ascending eigenvalues of WᵀW, by one of three ways. Reads no tensor, picks no layer, fits nothing.

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

from ..options import Options
from .budget import Held
from .lapack import NotConverged, add_gram, eigenvalues

BLOCK = 512  # rows or columns of the matrix that are in float64 at a time
SMALL_BLOCK = 64
FARMS_WINDOWS = 10  # along a side; more only where it takes more to cover it

CONVOLUTION = 0.5  # of each eigenvalue: the matrices of a convolution count times √0.5


class NotFinite(Exception):
    """The matrix holds what is no number: NaN or Inf."""


@dataclass(frozen=True, slots=True)
class Spectrum:
    """All eigenvalues of one layer, ascending, none below 0, and how they were come by."""

    evals: NDArray[np.float64]
    solver: str
    device: str
    note: str = ""


def matrices(tensor: torch.Tensor, *, convolution: bool) -> list[torch.Tensor]:
    """The matrices of one layer: the tensor, or of a convolution (out, in, k…) one out×in for each kernel position."""
    if not convolution:
        return [tensor]
    out, inner = tensor.shape[:2]
    return list(tensor.reshape(out, inner, -1).permute(2, 0, 1).unbind())


def windows(matrix: torch.Tensor) -> list[torch.Tensor]:
    """Overlapping square submatrices that cover a matrix; their side is half of its shorter one.

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
    return [round(place * (length - side) / max(1, count - 1)) for place in range(count)]


def spectrum(held: Held, options: Options, *, convolution: bool, device: torch.device, block: int = BLOCK) -> Spectrum:
    """The eigenvalues of a layer's matrices together.

    A tensor that is one matrix is let go as soon as its Gram matrix is made. Raises NotFinite, NotConverged, and what
    PyTorch raises for want of memory.
    """
    solver, note = options.solver, ""
    if solver != "svd":
        dtype = torch.float32 if solver == "fast" else torch.float64
        try:
            found = _pooled(_by_gram(held, options, dtype, convolution, device, block))
            lost = _lost(found, dtype) > options.evals_thresh
            if lost and solver == "auto":
                solver, note = "svd", f"λmax {found[-1]:.3g} is too great for a Gram matrix to resolve the threshold"
            elif lost:
                note = f"λmax {found[-1]:.3g} is too great for {solver} to resolve the threshold: noise may be counted"
        except NotConverged as error:
            solver, note = "svd", f"by way of the Gram matrix, {error}"
    if solver == "svd":
        parts = _parts(held.get(), options, convolution)
        found = _pooled(_squared_singular_values(part, device) for part in parts)
    if convolution:
        found = found * CONVOLUTION
    return Spectrum(found, "gram" if solver == "auto" else solver, str(device), note)


def _parts(tensor: torch.Tensor, options: Options, convolution: bool) -> list[torch.Tensor]:
    parts = matrices(tensor, convolution=convolution)
    return [window for part in parts for window in windows(part)] if options.farms else parts


def _by_gram(
    held: Held, options: Options, dtype: torch.dtype, convolution: bool, device: torch.device, block: int
) -> Iterator[NDArray[np.float64]]:
    parts = _parts(held.get(), options, convolution)
    single = len(parts) == 1
    while parts:
        part = parts.pop()
        found = gram(part, dtype, device, block)
        if not bool(torch.isfinite(found.diagonal()).all()):
            _check(part)
            raise NotConverged("its entries overflow")
        del part  # nothing here holds the tensor any more
        if single:
            held.drop()
        values: NDArray[np.float64] = eigenvalues(found).to("cpu", torch.float64).numpy()
        del found
        yield values


def _lost(evals: NDArray[np.float64], dtype: torch.dtype) -> float:
    """Below this a Gram matrix in that precision gives noise: its rounding, seen from the greatest eigenvalue.

    Cautious in float64, where doubt costs a singular value decomposition; as measured in float32, where it is a note.
    """
    factor = len(evals) if dtype == torch.float64 else 1
    return float(factor * torch.finfo(dtype).eps * evals[-1])


def _pooled(parts: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.concatenate(list(parts))
    np.maximum(found, 0.0, out=found)
    found.sort()
    return found


def gram(matrix: torch.Tensor, dtype: torch.dtype, device: torch.device, block: int) -> torch.Tensor:
    """The lower triangle of WᵀW or WWᵀ, whichever is smaller, on `device`; only one block is converted at a time."""
    rows, columns = matrix.shape
    tall = matrix if rows >= columns else matrix.T
    if block >= BLOCK:
        tall = tall.to(device, non_blocking=True)
    found = torch.zeros((min(rows, columns),) * 2, dtype=dtype, device=device)
    for part in tall.split(block):
        add_gram(found, part.to(device).to(dtype))
    return found


def _squared_singular_values(matrix: torch.Tensor, device: torch.device) -> NDArray[np.float64]:
    _check(matrix)
    try:
        found = torch.linalg.svdvals(matrix.to(device).to(torch.float64))
    except torch.linalg.LinAlgError as error:
        raise NotConverged(str(error)) from None
    values: NDArray[np.float64] = found.square().flip(0).cpu().numpy()
    return values


def _check(matrix: torch.Tensor) -> None:
    for part in matrix.split(BLOCK):
        part = part.float() if part.dtype.itemsize == 1 else part
        if not bool(torch.isfinite(part).all()):
            raise NotFinite("it holds NaN" if bool(torch.isnan(part).any()) else "it holds Inf")
