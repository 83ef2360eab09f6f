"""The interface of a source of tensors, a tensor that is read on first use, and the error of a faulty model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gpusched.common.text import one_line

MERGE_FIRST = "merge it with the software that made it, and analyse the merged copy"  # the remedy for an adapter


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor before it is read. `dtype` is torch's name of its type without the prefix, such as "bfloat16".

    `packing`: how a weight is stored that is dequantised when it is read, such as "gptq 4 bits".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    packing: str = ""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class TensorSource(Protocol):
    """The tensors of one model. It holds none itself: `read` returns a new one, on the CPU, in its stored dtype."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's config.json; empty if there is none."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Remarks for people on how this model was put together."""
        ...

    def infos(self) -> Sequence[TensorInfo]:
        """List all tensors in the order of the file; of tied tensors, the first."""
        ...

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """Read a tensor, or these slices along its first dimension, such as an expert of a stack.

        Raises ModelError for a file that is cut, or that changes while it is read.
        """
        ...


class OpenedFiles(TensorSource, Protocol):
    """The tensors of files on this machine. Whoever opens it closes it."""

    def close(self) -> None: ...


def read_matrix(source: TensorSource, name: str, expert: int | None) -> torch.Tensor:
    """Read a tensor, or one expert of a stack."""
    return source.read(name) if expert is None else source.read(name, slice(expert, expert + 1))[0]


class LazyTensor:
    """A tensor that is read on first use, and again if it was dropped before."""

    def __init__(self, read: Callable[[], torch.Tensor]) -> None:
        self._read = read
        self._tensor: torch.Tensor | None = None

    def get(self) -> torch.Tensor:
        if self._tensor is None:
            self._tensor = self._read()
        return self._tensor

    def drop(self) -> None:
        self._tensor = None


class ModelError(Exception):
    """A model that cannot be analysed.

    `stage` is resolve, download, load, merge or analyse. `reason` may hold text from others: it is cleaned here.
    `transient`: it may be over in a while (the network is down, the hub is busy), so another try is worth it.
    """

    def __init__(self, stage: str, reason: str, *, transient: bool = False) -> None:
        self.stage = stage
        self.reason = one_line(reason, 1000)
        self.transient = transient
        super().__init__(f"{stage}: {self.reason}")
