"""AWQ (Lin et al. 2023): integers of 4 bits packed along the output, and a scale and a zero for each group of inputs.

The format "gemm" of AutoAWQ (awq/modules/linear/gemm.py, `from_linear`): qweight (in, out / 8), qzeros
(groups, out / 8), scales (groups, out); a word holds the outputs 0 2 4 6 1 3 5 7 from its low bits on.
w = scale · (q − zero).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..read.derived import Derived, StoredTensors
from ..read.tensors import TensorInfo
from ..weights.packed import quantisation
from .bits import unpack

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where the outputs 0, 1, 2 … of a word lie
_IN_A_WORD = len(_PLACES)


def find(stored: StoredTensors) -> Iterator[Derived]:
    """Yield the weights of the modules with qweight, qzeros and scales in this layout."""
    if str(quantisation(stored.config).get("version", "gemm")).lower() != "gemm":
        return
    for stem, info in stored.ending(".qweight"):
        parts = tuple(f"{stem}.{part}" for part in ("qweight", "qzeros", "scales"))
        zeros, scales = stored.shape(parts[1]), stored.shape(parts[2])
        inputs, words = info.shape if len(info.shape) == 2 else (0, 0)
        if info.dtype != "int32" or not scales or scales[1] != words * _IN_A_WORD or zeros != (scales[0], words):
            continue
        if inputs % scales[0]:
            continue
        logical = TensorInfo(f"{stem}.weight", (scales[1], inputs), "float32", "awq 4 bits")
        yield Derived(logical, parts, _compute)


def _compute(packed: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    weight = _unpack(packed).to(torch.float32).unflatten(0, (len(scales), -1))
    weight.sub_(_unpack(zeros).to(torch.float32).unsqueeze(1)).mul_(scales.to(torch.float32).unsqueeze(1))
    return weight.flatten(0, 1).T.contiguous()


def _unpack(words: torch.Tensor) -> torch.Tensor:
    return unpack(words, 4).unflatten(-1, (-1, _IN_A_WORD))[..., _PLACES].flatten(-2)
