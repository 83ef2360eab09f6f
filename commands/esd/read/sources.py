"""Sources of tensors for models on this machine: directories, files, state dicts and modules. Fetches nothing."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .json_file import read_config, read_json
from .safetensors_file import SafetensorsSource
from .tensors import ModelError, TensorInfo, TensorSource
from .weight_files import PICKLES, model_weights

_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")  # of checkpoints that hold more than weights


def open_local(path: str | os.PathLike[str]) -> TensorSource:
    """Open a model's directory, or one file of weights.

    Raises ModelError, stage load, if there are no weights, or if they are damaged.
    """
    path = Path(path)
    if not path.exists():
        raise ModelError("load", f"{path} does not exist")
    if not path.is_dir():
        return _open_files([path], read_config(path.parent))
    names = sorted(entry.name for entry in path.iterdir())
    weights = model_weights(names)
    if not weights:
        content = f"it holds {', '.join(name[:40] for name in names[:6])}" if names else "it is empty"
        raise ModelError("load", f"{path} has no weights that can be read (safetensors or .bin); {content}")
    config = read_config(path)
    if weights[0].endswith(".index.json"):
        index = _read_index(path / weights[0])
        return _open_files([path / name for name in sorted(set(index.values()))], config, index)
    if len(weights) > 1:
        raise ModelError("load", f"{path} has {len(weights)} files of weights ({weights[0]} …), and no index")
    return _open_files([path / weights[0]], config)


def _read_index(path: Path) -> dict[str, str]:
    """Return the file name of each tensor; all of them are in the directory of the index."""
    weights = read_json(path, "load").get("weight_map")
    if not isinstance(weights, Mapping) or not weights:
        raise ModelError("load", f"{path.name} is no index of shards")
    index = {str(tensor): str(file) for tensor, file in weights.items()}
    for file in index.values():
        if Path(file).name != file or not (path.parent / file).exists():
            raise ModelError("load", f"{path.name} names {file[:200]}, which is missing in its directory")
    return index


def _open_files(
    files: Sequence[Path], config: Mapping[str, Any], index: Mapping[str, str] | None = None
) -> TensorSource:
    kinds = {file.suffix for file in files}
    if kinds == {".safetensors"}:
        return SafetensorsSource(files, config, index)
    if kinds <= set(PICKLES):
        return open_pickles(files, config)
    raise ModelError(
        "load", f"weights in {', '.join(sorted(kinds))} cannot be read; use safetensors, .bin, .pt or .pth"
    )


class StateSource:
    """Tensors in memory by name; of several that share their memory, the first."""

    def __init__(self, state: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> None:
        self.config = config or {}
        self.notes: list[str] = []
        self._tensors: dict[str, torch.Tensor] = {}
        seen: dict[tuple[object, ...], str] = {}
        for name, value in state.items():
            if not isinstance(value, torch.Tensor):
                continue
            tensor = value.detach()
            if tensor.layout is not torch.strided or tensor.device.type == "meta":
                raise ModelError("load", f"{name} ({tensor.layout} on {tensor.device}): only dense tensors can be read")
            identity = (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
            first = seen.setdefault(identity, name) if tensor.numel() else name
            if first != name:
                self.notes.append(f"{name} is tied to {first}")
            else:
                self._tensors[str(name)] = tensor

    def infos(self) -> Sequence[TensorInfo]:
        return [
            TensorInfo(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in self._tensors.items()
        ]

    def read(self, name: str, part: int | None = None) -> torch.Tensor:
        tensor = self._tensors[name]
        return (tensor if part is None else tensor[part]).cpu()

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
    notes = []
    for path in files:
        tensors, is_mapped = _load(path)
        if twice := next((name for name in tensors if name in state), ""):
            raise ModelError("load", f"{twice} is in two files, {path.name} the second")
        state |= tensors
        if not is_mapped:
            notes.append(f"{path.name} is in the old format of torch.save: all of it is in memory at once")
    source = StateSource(state, config)
    source.notes += notes
    return source


def _load(path: Path) -> tuple[dict[str, torch.Tensor], bool]:
    """Return the tensors of a file by name, and whether they are mapped; a file before PyTorch 1.6 cannot be."""
    with open(path, "rb") as file:
        start = file.read(64)
    if start.startswith(b"version https://git-lfs"):
        raise ModelError("load", f"{path.name} is a Git LFS pointer, not the weights; `git lfs pull` fetches them")
    is_zip = start.startswith(b"PK")
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError:  # PyTorch's message advises to run it all the same
        raise ModelError(
            "load", f"{path.name} holds more than weights, and is not run; save its tensors alone"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError("load", f"{path.name} is cut or damaged: {str(error)[:200]}") from None
    wrapped = [loaded[key] for key in _WRAPPERS if key in loaded] if isinstance(loaded, Mapping) else []
    for state in (loaded, *wrapped):
        items = state.items() if isinstance(state, Mapping) else ()
        tensors = {str(name): item for name, item in items if isinstance(item, torch.Tensor)}
        if tensors:
            return tensors, is_zip
    raise ModelError("load", f"{path.name} holds no tensors by name")
