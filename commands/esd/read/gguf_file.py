"""Read the tensors of GGUF files (llama.cpp), dequantised by the `gguf` package as they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .tensors import ModelError, TensorInfo

_PLAIN = {"F64": "float64", "F32": "float32", "F16": "float16"}
_PLAIN |= {f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}


class GgufSource:
    """The tensors of one model in GGUF files. They are mapped; only what is read is in memory, in float32."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Raises ModelError, stage load, for a damaged file, and for one that holds no model."""
        try:
            import gguf
        except ImportError:
            raise ModelError("load", "GGUF files need the package gguf: pip install 'gpusched-lab[esd]'") from None
        self.config: Mapping[str, Any] = {}
        self.notes: Sequence[str] = ()
        self._dequantise = gguf.quants.dequantize
        self._tensors: dict[str, tuple[TensorInfo, Any]] = {}
        for path in files:
            try:
                reader = gguf.GGUFReader(path)
                kind = reader.get_field("general.type")
                kind_name = str(kind.contents()) if kind else "model"
            except Exception:  # whatever the package's parser meets in a damaged file
                raise ModelError("load", f"{path.name} is no GGUF file, or is damaged") from None
            if kind_name != "model":
                raise ModelError("load", f"{path.name} holds a GGUF {kind_name}, not the weights of a model")
            for tensor in reader.tensors:
                type_name = tensor.tensor_type.name
                shape = tuple(int(size) for size in reversed(tensor.shape))
                packing = "" if type_name in _PLAIN else f"gguf {type_name}"
                info = TensorInfo(tensor.name, shape, _PLAIN.get(type_name, "float32"), packing)
                self._tensors[tensor.name] = (info, tensor)

    def infos(self) -> Sequence[TensorInfo]:
        return [info for info, _ in self._tensors.values()]

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        info, tensor = self._tensors[name]
        data = tensor.data if rows is None else tensor.data[rows]
        try:
            values = self._dequantise(data, tensor.tensor_type) if info.packing else data.copy()
        except NotImplementedError as error:
            packing = tensor.tensor_type.name
            raise ModelError("load", f"{name} is packed as {packing}, which gguf cannot unpack") from error
        return torch.from_numpy(values.reshape(-1, *info.shape[1:]))

    def close(self) -> None:
        self._tensors.clear()
