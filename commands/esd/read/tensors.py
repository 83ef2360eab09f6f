"""Where the tensors of a model come from: what a source of tensors offers. Knows no file format and no spectrum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gpusched.common.text import one_line


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One stored tensor, before it is read. `dtype` as in torch, without its prefix: "bfloat16"."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str = ""

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


class TensorSource(Protocol):
    """The tensors of one model. Holds no tensor itself: `read` makes a new one, on the CPU, in its stored dtype."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The model's config.json; empty where there is none."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a person should know of how this model was put together."""
        ...

    def infos(self) -> Sequence[TensorInfo]:
        """All tensors, in the order of the file; of tied ones, the first."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """One tensor. Raises ModelError for a file that is cut, or changes under us."""
        ...

    def close(self) -> None: ...


class ModelError(Exception):
    """A model that cannot be analysed.

    `stage` is resolve, download, load, merge or analyse. `reason` may hold text from others: it is cleaned here.
    """

    def __init__(self, stage: str, reason: str) -> None:
        self.stage = stage
        self.reason = one_line(reason, 1000)
        super().__init__(f"{stage}: {self.reason}")
