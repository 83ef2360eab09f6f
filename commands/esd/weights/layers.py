"""Choose the layers to analyse, with a reason for each tensor that is skipped.

Name, shape, type and config decide:

- the words of a name show biases, embeddings, heads, the parts of packed weights, and parameters that are no layers;
- three dimensions are a stack of experts if the name says so (`experts`, `moe`, `input_linear`, `output_linear`), or if
  the last two are longer than 32 and the name says nothing of a convolution; otherwise a convolution (out, in, k);
- four and five dimensions are convolutions. (out, in, k…) and, transposed, (in, out, k…) have the same spectrum;
- two dimensions are one matrix, a fused q/k/v whole. Conv1D of the GPT-2 family is stored in×out: the same spectrum.

Content is compared only where a tensor may share the weight of an embedding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusched.esd.options import AnalysisOptions

from ..read.tensors import TensorInfo
from .names import depth_order, is_embedding, is_no_layer
from .packed import FLOAT8, packed_tensors
from .tied import tied_tensors

FLOATS = ("float64", "float32", "float16", "bfloat16")
_STACK_SIDE = 32  # a kernel is shorter, an expert is longer
_MOST_DIMENSIONS = 5

_EXPERTS = re.compile(r"(^|[._])(experts?|moe|exps|input_linear|output_linear)([._]|$)")
_CONVOLUTION = re.compile(r"conv|downsample|patch_embed|kernel", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Layer:
    """One matrix or convolution to analyse: a whole tensor, or one expert of a stack. `name` lacks `.weight`."""

    name: str
    tensor: TensorInfo
    convolution: bool = False
    expert: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape if self.expert is None else self.tensor.shape[1:]

    @property
    def matrix(self) -> tuple[int, int]:
        """The rows and columns of its matrix, or of each matrix of a convolution."""
        return self.shape[0], self.shape[1]

    @property
    def elements(self) -> int:
        return self.tensor.elements // (self.tensor.shape[0] if self.expert is not None else 1)


@dataclass(frozen=True, slots=True)
class Skip:
    """A tensor with two or more dimensions that gets no row, and the reason.

    `missing`: the elements of the layer that it is, 0 if it is none. Coverage counts them.
    """

    tensor: TensorInfo
    reason: str
    missing: int = 0


def choose_layers(
    infos: Sequence[TensorInfo],
    config: Mapping[str, Any],
    options: AnalysisOptions,
    embeddings: Collection[str] = (),
    is_same: Callable[[str, str], bool] = lambda name, other: False,
) -> tuple[list[Layer], list[Skip]]:
    """Return the layers and the skipped tensors, in the order of depth. Tensors below two dimensions are in neither.

    `embeddings`: names of tensors that are embeddings by their type. `is_same` compares the contents of two tensors.
    """
    packed = packed_tensors({info.name: info for info in infos}, config)
    tables = [info for info in infos if info.name in embeddings or is_embedding(info.name, info.shape)]
    tied = tied_tensors(infos, tables, config, is_same)
    is_wanted = re.compile(options.layers).search
    layers: list[Layer] = []
    skips: list[Skip] = []
    order = depth_order(info.name for info in infos)
    for info in sorted(infos, key=lambda info: order[info.name]):
        if len(info.shape) < 2:
            continue
        reason, missing = packed.get(info.name, ("", 0))
        reason = reason or refusal(info)
        if not reason and info in tables and not options.embeddings:
            reason = "an embedding (analysed with --embeddings)"
        reason = reason or tied.get(info.name, "")
        if not is_wanted(info.name):
            reason, missing = reason or "left out by --layers", 0
        if reason:
            missing = info.elements if reason == _too_many(info) else missing
            skips.append(Skip(info, reason, missing))
            continue
        label = info.name.removesuffix(".weight")
        label = info.name if label in order else label
        if is_stack(info):
            layers += [Layer(f"{label}[{n}]", info, expert=n) for n in range(info.shape[0])]
        else:
            layers.append(Layer(label, info, convolution=len(info.shape) > 2))
    return layers, skips


def refusal(info: TensorInfo) -> str:
    """Return why a tensor is no matrix of weights; "" if it is one."""
    if not info.name.isprintable():
        return "its name has characters that cannot be shown"
    if not info.elements:
        return "empty: it has no elements"
    if info.dtype not in FLOATS + FLOAT8:
        return f"{info.dtype}, not weights"
    if info.name.rpartition(".")[2].endswith("bias"):
        return "a bias, not a matrix of weights"
    if is_no_layer(info.name):
        return "a parameter that is no layer"
    if sum(size > 1 for size in info.shape) < 2:
        return "a vector: it has one dimension besides those of length 1"
    return _too_many(info)


def is_stack(info: TensorInfo) -> bool:
    """Return True if a tensor of three dimensions is a stack of experts, False for a convolution over one dimension."""
    if len(info.shape) != 3:
        return False
    if _EXPERTS.search(info.name):
        return True
    return min(info.shape[1:]) > _STACK_SIDE and not _CONVOLUTION.search(info.name)


def _too_many(info: TensorInfo) -> str:
    return f"{len(info.shape)} dimensions: no known kind of layer" if len(info.shape) > _MOST_DIMENSIONS else ""
