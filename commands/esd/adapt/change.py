"""Show the change ΔW of a model against its base as a model of its own.

The spectrum of an adapter's s·B·A is that of a small matrix: with A = R'Q' and B = QR, Q and Q' orthonormal, it is
s·R·R', as large as the rank. So neither BA nor the base's weight is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..read.tensors import ModelError, TensorInfo, TensorSource, read_matrix
from .adapters import MergedSource
from .lora import CONVOLUTION

CHANGE = "change of "  # begins the type of a tensor: that of what has changed follows


class ChangeSource:
    """The tensors of `model` less those of `base`, in float64. `adapters`: how the model is made of the base, if it is.

    A matrix with low-rank changes alone is read as its small equivalent: another shape, the same singular values.
    """

    def __init__(
        self, model: TensorSource, base: TensorSource, name: str, adapters: Sequence[MergedSource] = ()
    ) -> None:
        """`name`: that of the base. Raises ModelError, stage load, if nothing can be compared."""
        self.config: Mapping[str, Any] = {**base.config, "tie_word_embeddings": False}
        self._model = model
        self._base = base
        self._adapters = adapters
        self.base_name = name
        shapes = {info.name: info.shape for info in base.infos()}
        changed = {key for each in adapters for key in each.changes}
        infos = [info for info in model.infos() if len(info.shape) > 1 and (info.name in changed or not adapters)]
        self._infos = [
            replace(info, dtype="float64", packing=f"{CHANGE}{info.packing or info.dtype}")
            for info in infos
            if shapes.get(info.name) == info.shape
        ]
        self._missing = len(infos) - len(self._infos)
        if not self._infos:
            raise ModelError("load", f"no matrix of it has a counterpart of the same name and shape in its base {name}")

    @property
    def notes(self) -> Sequence[str]:
        lone = f"; {self._missing} matrices have no counterpart of the same shape there" if self._missing else ""
        return [*self._model.notes, f"the rows are of its change against {self.base_name}{lone}"]

    def infos(self) -> Sequence[TensorInfo]:
        return self._infos

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        factors = self._factors(name)
        if factors is None:
            return self._model.read(name, rows).double() - self._base.read(name, rows).double()
        a, b = factors
        small = torch.linalg.qr(b, mode="r").R @ torch.linalg.qr(a.T, mode="r").R.T
        return small if rows is None else small[rows]

    def before_and_after(self, name: str, expert: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Read a matrix of the base, and that of the model."""
        return read_matrix(self._base, name, expert), read_matrix(self._model, name, expert)

    def _factors(self, name: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return A and B of all adapters together, B with the scales; None if more than low-rank changes are made."""
        pairs = []
        for each in self._adapters:
            change = each.changes.get(name)
            if change is None:
                continue
            if change.base != name or change.stored:
                return None
            for add in change.adds:
                if add.parts.keys() != {"a", "b"} or add.kind == CONVOLUTION:
                    return None
                a, b = (each.read_factor(add.parts[part]).double() for part in "ab")
                pairs.append((a, b * add.scale, add.kind))
        if not pairs or len({kind for *_, kind in pairs}) > 1:
            return None
        return torch.cat([a for a, _, _ in pairs]), torch.cat([b for _, b, _ in pairs], dim=1)
