"""Compare the singular vectors of a layer before and after a change."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .fallback import NoRoom, fallback

OVERLAPS = (1, 8, 64)  # numbers of leading vectors
_LEADING, _COSINE = 10, 0.5  # of intruders


def compare_vectors(before: torch.Tensor, after: torch.Tensor, device: torch.device) -> Mapping[str, float | int]:
    """Return overlaps and intruders of two matrices by column; nothing where there is no memory, or no such vectors.

    overlap(k) = ‖Uk(W)ᵀ Uk(W+ΔW)‖² / k: 1 if the k leading left singular vectors span the same space, 0 if those spaces
    are orthogonal. Intruders are those of the ten leading vectors of W+ΔW whose cosines to all vectors of W are below
    0.5 (Shuttleworth, Andreas, Torralba, Sharma: LoRA vs full fine-tuning, an illusion of equivalence, 2024).
    """

    def compare(where: torch.device) -> Mapping[str, float | int]:
        old, new = (_left_vectors(matrix, where) for matrix in (before, after))
        cosines = (old.T @ new[:, :_LEADING]).abs().amax(dim=0)
        overlaps = {
            f"overlap_{k}": float((old[:, :k].T @ new[:, :k]).square().sum()) / k for k in OVERLAPS if k <= old.shape[1]
        }
        return {**overlaps, "intruders": int((cosines < _COSINE).sum())}

    try:
        return fallback(compare, device)[0]
    except (NoRoom, torch.linalg.LinAlgError):
        return {}


def _left_vectors(matrix: torch.Tensor, device: torch.device) -> torch.Tensor:
    vectors: torch.Tensor = torch.linalg.svd(matrix.to(device).double(), full_matrices=False).U
    return vectors
