"""Sources of tensors for models on this machine: directories, files, state dicts and modules. Fetches nothing."""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .json_file import read_config, read_json
from .safetensors_file import SafetensorsFile
from .tensors import ModelError, TensorInfo, TensorSource

_NAMES = ("model.safetensors", "pytorch_model.bin")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_SHARD = re.compile(r".*-(\d{5})-of-(\d{5})\.(?:safetensors|bin)")
_NO_WEIGHTS = (
    *("adapter_model.safetensors", "adapter_model.bin"),
    *("training_args.bin", "optimizer.pt", "scheduler.pt"),
)
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")  # of checkpoints that hold more than weights
_DONTNEED = 4  # of madvise


def open_local(path: str | os.PathLike[str]) -> TensorSource:
    """Open a model's directory, or one file of weights.

    Raises ModelError, stage load, if there are no weights, or if they are damaged.
    """
    path = Path(path)
    if path.is_dir():
        return _open_directory(path)
    if not path.exists():
        raise ModelError("load", f"{path} does not exist")
    return _open_files([path], read_config(path.parent))


def _open_directory(directory: Path) -> TensorSource:
    config = read_config(directory)
    for name in _NAMES:
        if (directory / f"{name}.index.json").exists():
            return _open_index(directory, f"{name}.index.json", config)
        if (directory / name).exists():
            return _open_files([directory / name], config)
    names = sorted(path.name for path in directory.iterdir())
    for suffixes in ((".safetensors",), _PICKLES):
        files = [directory / name for name in names if name.endswith(suffixes) and name not in _NO_WEIGHTS]
        if files:
            _refuse_missing_shards(files)
            return _open_files(files, config, notes=[] if len(files) == 1 else [f"{len(files)} files without an index"])
    content = f"it holds {', '.join(name[:40] for name in names[:6])}" if names else "it is empty"
    raise ModelError("load", f"{directory} has no weights that can be read (safetensors or .bin); {content}")


def _refuse_missing_shards(files: Sequence[Path]) -> None:
    """Raise ModelError if the names of shards say that there are more of them."""
    numbered = [match for match in (_SHARD.fullmatch(path.name) for path in files) if match]
    if numbered and len(numbered) != int(numbered[0][2]):
        raise ModelError("load", f"there are {len(numbered)} shards of {int(numbered[0][2])}, and no index")


def _open_index(directory: Path, name: str, config: Mapping[str, Any]) -> TensorSource:
    weights = read_json(directory / name, "load").get("weight_map")
    if not isinstance(weights, Mapping):
        raise ModelError("load", f"{name} is no index of shards")
    index = {str(tensor): str(file) for tensor, file in weights.items()}
    if not index:
        raise ModelError("load", f"{name} names no tensor")
    files = sorted(set(index.values()))
    for file in files:
        if Path(file).name != file:
            raise ModelError("load", f"{name} names {file[:200]}, which is not in its directory")
        if not (directory / file).exists():
            raise ModelError("load", f"{name} names {file}, which is missing")
    return _open_files([directory / file for file in files], config, index=index)


def _open_files(
    files: Sequence[Path],
    config: Mapping[str, Any],
    *,
    notes: Sequence[str] = (),
    index: Mapping[str, str] | None = None,
) -> TensorSource:
    if all(file.suffix == ".safetensors" for file in files):
        return SafetensorsSource(files, config, notes, index)
    if all(file.suffix in _PICKLES for file in files):
        return PickleSource(files, config, notes)
    kinds = ", ".join(sorted({file.suffix or file.name for file in files}))
    raise ModelError("load", f"weights in {kinds} cannot be read; use safetensors, .bin, .pt or .pth")


class SafetensorsSource:
    """One or more safetensors files of one model. Headers are read now, tensors on demand."""

    def __init__(
        self,
        files: Sequence[Path],
        config: Mapping[str, Any],
        notes: Sequence[str] = (),
        index: Mapping[str, str] | None = None,
    ) -> None:
        """`index`: the file name of each tensor, if the model has an index; every tensor has to be where it says."""
        self.config = config
        self.notes = list(notes)
        self._files: list[SafetensorsFile] = []
        self._file_of: dict[str, SafetensorsFile] = {}
        self._infos: list[TensorInfo] = []
        try:
            for path in files:
                self._files.append(SafetensorsFile(path))
                self._add(self._files[-1], index)
            for name, where in (index or {}).items():
                if name not in self._file_of:
                    raise ModelError("load", f"the index looks for {name} in {where}, which lacks it")
        except ModelError:
            self.close()
            raise

    def _add(self, file: SafetensorsFile, index: Mapping[str, str] | None) -> None:
        for info in file.infos:
            if index is not None and index.get(info.name) != file.path.name:
                self.notes.append(f"{info.name} in {file.path.name} is not in the index: left out")
            elif info.name in self._file_of:
                raise ModelError("load", f"{info.name} is in two files, {file.path.name} the second")
            else:
                self._file_of[info.name] = file
                self._infos.append(info)

    def infos(self) -> Sequence[TensorInfo]:
        return self._infos

    def read(self, name: str, part: int | None = None) -> torch.Tensor:
        return self._file_of[name].read(name, part)

    def close(self) -> None:
        for file in self._files:
            file.close()


class StateSource:
    """Tensors in memory by name; of several that share their memory, the first."""

    def __init__(
        self, state: Mapping[str, Any], config: Mapping[str, Any] | None = None, notes: Sequence[str] = ()
    ) -> None:
        self.config = config or {}
        self.notes = list(notes)
        self._tensors: dict[str, torch.Tensor] = {}
        seen: dict[tuple[object, ...], str] = {}
        for name, value in state.items():
            if not isinstance(value, torch.Tensor):
                continue
            tensor = value.detach()
            if tensor.layout is not torch.strided or tensor.device.type == "meta":
                problem = "has no data yet" if tensor.device.type == "meta" else f"is {tensor.layout}"
                raise ModelError("load", f"{name} {problem}; only dense tensors can be read")
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


class PickleSource(StateSource):
    """Files of torch.save, read with weights_only and mapped, so that only the tensor in use takes memory."""

    def __init__(self, files: Sequence[Path], config: Mapping[str, Any], notes: Sequence[str] = ()) -> None:
        notes = list(notes)
        state: dict[str, Any] = {}
        self._mapped: set[str] = set()
        for path in files:
            loaded, is_mapped = _load(path, notes)
            for name, value in _tensors(loaded, path, notes).items():
                if name in state:
                    raise ModelError("load", f"{name} is in two files, {path.name} the second")
                state[name] = value
                if is_mapped:
                    self._mapped.add(name)
        super().__init__(state, config, notes)

    def read(self, name: str, part: int | None = None) -> torch.Tensor:
        tensor = super().read(name, part)
        if name not in self._mapped:
            return tensor
        copy = tensor.clone()
        _drop_pages(tensor)
        return copy


def _load(path: Path, notes: list[str]) -> tuple[Any, bool]:
    """Return the content of a file, and whether it is mapped."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        first = file.read(64)
    if not size:
        raise ModelError("load", f"{path.name} is empty")
    if first.startswith(b"version https://git-lfs"):
        raise ModelError("load", f"{path.name} is a Git LFS pointer, not the weights; `git lfs pull` fetches them")
    is_zip = first.startswith(b"PK")
    if not is_zip:
        notes.append(f"{path.name} is in the old format of torch.save: all of it is in memory at once")
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip), is_zip
    except pickle.UnpicklingError as error:
        # The rest of PyTorch's message advises to run it all the same.
        match = re.search(r"GLOBAL (\S+)|(Unsupported \w+ \d+)", str(error))
        reason = f" ({(match[1] or match[2])[:100]})" if match else ""
        raise ModelError(
            "load", f"{path.name} holds more than weights{reason}, and is not run; its tensors alone can be read"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError("load", f"{path.name} is cut or damaged: {str(error)[:200]}") from None


def _tensors(loaded: Any, path: Path, notes: list[str]) -> Mapping[str, Any]:
    """Return the mapping of names to tensors in the content of a file."""
    candidates: Iterable[tuple[str, Any]] = [("", loaded)]
    if isinstance(loaded, Mapping):
        candidates = [("", loaded), *((key, loaded[key]) for key in _WRAPPERS if key in loaded)]
    for key, value in candidates:
        if isinstance(value, Mapping) and any(isinstance(item, torch.Tensor) for item in value.values()):
            if key:
                notes.append(f"the tensors of {path.name} are those under its key {key}")
            return {str(name): item for name, item in value.items()}
    raise ModelError("load", f"{path.name} holds no tensors by name")


def _drop_pages(tensor: torch.Tensor) -> None:
    """Let the kernel take back the pages of a mapped file: once read, they count as ours until the file is closed.

    Only for a mapped tensor that nobody has written to: its pages are read from the file again when they are needed,
    while the pages of any other memory would become zeros.
    """
    if not tensor.is_contiguous():
        return
    begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(_DONTNEED))
