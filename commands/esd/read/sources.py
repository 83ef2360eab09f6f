"""Sources of tensors for models on this machine: directories, files, state dicts and modules. Fetches nothing."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .gguf_file import GgufSource
from .json_file import read_config, read_json
from .safetensors_file import SafetensorsSource
from .tensors import ModelError, OpenedFiles, TensorInfo
from .weight_files import PICKLES, choose_weights, no_weights

_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")  # of checkpoints that hold more than weights


def open_local(path: str | os.PathLike[str]) -> OpenedFiles:
    """Open a model's directory, or one file of weights.

    Raises ModelError, stage load, if there are no weights, or if they are damaged.
    """
    path = Path(path)
    if not path.exists():
        raise ModelError("load", f"{path} does not exist")
    if not path.is_dir():
        return _open_files([path], read_config(path.parent))
    names = os.listdir(path)
    weights, index = choose_weights(names, lambda name: read_json(path / name, "load"), "load")
    if not weights:
        raise ModelError("load", no_weights(str(path), names))
    return _open_files([path / name for name in weights], read_config(path), index)


def _open_files(
    files: Sequence[Path], config: Mapping[str, Any], index: Mapping[str, str] | None = None
) -> OpenedFiles:
    kinds = {file.suffix for file in files}
    if kinds == {".safetensors"}:
        return SafetensorsSource(files, config, index)
    if kinds <= set(PICKLES):
        return open_pickles(files, config)
    if kinds == {".gguf"}:
        return GgufSource(files)
    remedy = "use safetensors, .gguf, .bin, .pt or .pth"
    raise ModelError("load", f"weights in {', '.join(sorted(kinds))} cannot be read; {remedy}")


class StateSource:
    """Tensors in memory by name; of several that share their memory, the first."""

    def __init__(self, state: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> None:
        self.config = config or {}
        self.notes: list[str] = []
        self.shared: dict[str, str] = {}  # a name that is left out -> the one that is kept
        self._tensors: dict[str, torch.Tensor] = {}
        seen: dict[tuple[object, ...], str] = {}
        for name, value in state.items():
            if isinstance(value, np.ndarray) and value.dtype.kind in "fiubc":
                value = torch.from_numpy(np.require(value, requirements=["C", "W"]))
            if not isinstance(value, torch.Tensor):
                continue
            tensor = value.detach()
            if tensor.is_quantized or type(value).__torch_dispatch__ != torch.Tensor.__torch_dispatch__:
                kind = tensor.qscheme() if tensor.is_quantized else type(value).__name__
                raise ModelError("load", f"{name} is quantised ({kind}): dequantise it first, or use the plain model")
            if tensor.layout is not torch.strided or tensor.device.type == "meta":
                raise ModelError("load", f"{name} ({tensor.layout} on {tensor.device}): only dense tensors can be read")
            identity = (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
            first = seen.setdefault(identity, name) if tensor.numel() else name
            if first != name:
                self.notes.append(f"{name} is tied to {first}")
                self.shared[str(name)] = first
            else:
                self._tensors[str(name)] = tensor

    def infos(self) -> Sequence[TensorInfo]:
        return [
            TensorInfo(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in self._tensors.items()
        ]

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        tensor = self._tensors[name]
        return (tensor if rows is None else tensor[rows]).cpu()

    def close(self) -> None:
        self._tensors.clear()


class ModuleSource(StateSource):
    """A torch module in memory. Its embeddings are recognised by their type instead of their names."""

    def __init__(self, module: torch.nn.Module) -> None:
        to_dict = getattr(getattr(module, "config", None), "to_dict", dict)
        super().__init__(module.state_dict(), to_dict())
        self.embeddings = frozenset(
            f"{name}.weight" if name else "weight"
            for name, part in module.named_modules()
            if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        )


def open_pickles(files: Sequence[Path], config: Mapping[str, Any]) -> StateSource:
    """Open files of torch.save. They are mapped, so that the kernel can take back the memory of what was read."""
    state: dict[str, torch.Tensor] = {}
    for path in files:
        tensors = _load(path)
        if twice := next((name for name in tensors if name in state), ""):
            raise ModelError("load", f"{twice} is in two files, {path.name} the second")
        state |= tensors
    return StateSource(state, config)


def _load(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name. They are mapped, unless the file is of PyTorch before 1.6."""
    with open(path, "rb") as file:
        start = file.read(64)
    if start.startswith(b"version https://git-lfs"):
        raise ModelError("load", f"{path.name} is a Git LFS pointer, not the weights; `git lfs pull` fetches them")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=start.startswith(b"PK"))
    except pickle.UnpicklingError:  # PyTorch's message advises to run it all the same
        problem = f"{path.name} holds more than weights, and is not run"
        raise ModelError("load", f"{problem}; save its tensors alone") from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError("load", f"{path.name} is cut or damaged: {str(error)[:200]}") from None
    wrapped = [loaded[key] for key in _WRAPPERS if key in loaded] if isinstance(loaded, Mapping) else []
    states = [_tensors_of(state) for state in (loaded, *wrapped)]
    # A few tensors beside the model, of statistics say, do not hide it.
    largest = max(states, key=lambda tensors: sum(tensor.numel() for tensor in tensors.values()))
    if not largest:
        raise ModelError("load", f"{path.name} holds no tensors by name")
    return largest


def _tensors_of(state: Any) -> dict[str, torch.Tensor]:
    items = state.items() if isinstance(state, Mapping) else ()
    return {str(name): item for name, item in items if isinstance(item, torch.Tensor)}
