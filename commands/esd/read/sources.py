"""Models that lie on this box, as sources of tensors: directories, files, state dicts, modules. Fetches nothing."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .safetensors_file import SafetensorsFile
from .tensors import ModelError, TensorInfo, TensorSource

_NAMES = ("model.safetensors", "pytorch_model.bin")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_SHARD = re.compile(r".*-(\d{5})-of-(\d{5})\.(?:safetensors|bin)")
_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")  # of checkpoints that hold more than weights
_DONTNEED = 4  # of madvise


def open_local(path: str | os.PathLike[str]) -> TensorSource:
    """A model's directory, or one file of weights. ModelError("load", …) if there is none, or it is damaged."""
    place = Path(path)
    if place.is_dir():
        return _open_directory(place)
    if not place.exists():
        raise ModelError("load", f"{place} does not exist")
    return _open_files([place], read_config(place.parent), [])


def read_config(directory: Path) -> dict[str, Any]:
    """config.json as it is; empty if there is none. ModelError for one that is no JSON object."""
    try:
        found = json.loads((directory / "config.json").read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError("load", f"config.json cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ModelError("load", "config.json holds no JSON object")
    return found


def _open_directory(place: Path) -> TensorSource:
    config = read_config(place)
    for name in _NAMES:
        if (place / f"{name}.index.json").exists():
            return _open_index(place, f"{name}.index.json", config)
        if (place / name).exists():
            return _open_files([place / name], config, [])
    for suffixes in ((".safetensors",), _PICKLES):
        files = sorted(p for p in place.iterdir() if p.suffix in suffixes and p.name not in _ADAPTERS)
        files = [p for p in files if p.name not in ("training_args.bin", "optimizer.pt", "scheduler.pt")]
        if files:
            _complete(files)
            return _open_files(files, config, [] if len(files) == 1 else [f"{len(files)} files without an index"])
    there = sorted(p.name for p in place.iterdir())
    what = f"it holds {', '.join(n for n in there[:6])}" if there else "it is empty"
    raise ModelError("load", f"{place} has no weights that can be read (safetensors or .bin); {what}")


def _complete(files: Sequence[Path]) -> None:
    """ModelError if shards that count themselves are not all there."""
    counted = [match for match in (_SHARD.fullmatch(p.name) for p in files) if match]
    if counted and len(counted) != int(counted[0][2]):
        raise ModelError("load", f"there are {len(counted)} shards of {int(counted[0][2])}, and no index")


def _open_index(place: Path, name: str, config: Mapping[str, Any]) -> TensorSource:
    try:
        weights = json.loads((place / name).read_bytes())["weight_map"]
        names = {str(tensor): str(file) for tensor, file in weights.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelError("load", f"{name} is no index of shards") from None
    if not names:
        raise ModelError("load", f"{name} names no tensor")
    files = sorted(set(names.values()))
    for file in files:
        if Path(file).name != file:
            raise ModelError("load", f"{name} names {file}, which is not in its directory")
        if not (place / file).exists():
            raise ModelError("load", f"{name} names {file}, which is missing")
    return _open_files([place / file for file in files], config, [], names)


def _open_files(
    files: Sequence[Path], config: Mapping[str, Any], notes: Sequence[str], index: Mapping[str, str] | None = None
) -> TensorSource:
    if all(file.suffix == ".safetensors" for file in files):
        return SafetensorsSource(files, config, notes, index)
    if all(file.suffix in _PICKLES for file in files):
        return PickleSource(files, config, notes)
    kinds = ", ".join(sorted({file.suffix or file.name for file in files}))
    raise ModelError("load", f"weights in {kinds} cannot be read; give safetensors, .bin, .pt or .pth")


class SafetensorsSource:
    """One or more safetensors files of one model. Reads headers now, tensors on demand."""

    def __init__(
        self,
        files: Sequence[Path],
        config: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        index: Mapping[str, str] | None = None,
    ) -> None:
        """`index`: tensor -> name of its file, where the model has one; each must be where it says."""
        self.config = config or {}
        self.notes = list(notes)
        self._files: list[SafetensorsFile] = []
        self._of: dict[str, SafetensorsFile] = {}
        self._infos: list[TensorInfo] = []
        try:
            for path in files:
                file = SafetensorsFile(path)
                self._files.append(file)
                self._take(file, index)
        except BaseException:
            self.close()
            raise
        for name, where in (index or {}).items():
            if name not in self._of:
                self.close()
                raise ModelError("load", f"the index looks for {name} in {where}, which lacks it")

    def _take(self, file: SafetensorsFile, index: Mapping[str, str] | None) -> None:
        for info in file.infos:
            if index is not None and index.get(info.name) != file.path.name:
                self.notes.append(f"{info.name} in {file.path.name} is not in the index: left out")
            elif info.name in self._of:
                raise ModelError("load", f"{info.name} is in two files, {file.path.name} the second")
            else:
                self._of[info.name] = file
                self._infos.append(info)

    def infos(self) -> Sequence[TensorInfo]:
        return self._infos

    def read(self, name: str) -> torch.Tensor:
        return self._of[name].read(name)

    def read_part(self, name: str, part: int) -> torch.Tensor:
        """One part of a tensor along its first dimension: an expert of a stack, without the others."""
        return self._of[name].read(name, part)

    def close(self) -> None:
        for file in self._files:
            file.close()


class StateSource:
    """Tensors that are in memory already, by name; of those that share their memory, the first."""

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
                where = "has no data yet" if tensor.device.type == "meta" else f"is {tensor.layout}"
                raise ModelError("load", f"{name} {where}; only dense tensors can be read")
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

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name].cpu()

    def read_part(self, name: str, part: int) -> torch.Tensor:
        return self._tensors[name][part].cpu()

    def close(self) -> None:
        self._tensors.clear()


class ModuleSource(StateSource):
    """A torch module in memory. Its embeddings are known by their type, not by their names."""

    def __init__(self, module: torch.nn.Module) -> None:
        to_dict = getattr(getattr(module, "config", None), "to_dict", dict)
        super().__init__(module.state_dict(), to_dict())
        self.embeddings = frozenset(
            f"{name}.weight" if name else "weight"
            for name, part in module.named_modules()
            if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag))
        )


class PickleSource(StateSource):
    """Files written by torch.save, read with weights_only and mapped, so that only what is looked at is in memory."""

    def __init__(
        self, files: Sequence[Path], config: Mapping[str, Any] | None = None, notes: Sequence[str] = ()
    ) -> None:
        found = list(notes)
        state: dict[str, Any] = {}
        self._mapped: set[str] = set()
        for path in files:
            loaded, mapped = _load(path, found)
            for name, value in _tensors(loaded, path, found).items():
                if mapped:
                    self._mapped.add(name)
                if name in state:
                    raise ModelError("load", f"{name} is in two files, {path.name} the second")
                state[name] = value
        super().__init__(state, config, found)

    def read(self, name: str) -> torch.Tensor:
        return self._copied(name, self._tensors[name])

    def read_part(self, name: str, part: int) -> torch.Tensor:
        return self._copied(name, self._tensors[name][part])

    def _copied(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in self._mapped:
            return tensor
        copied = tensor.clone()
        _drop_pages(tensor)
        return copied


def _load(path: Path, notes: list[str]) -> tuple[Any, bool]:
    """What the file holds, and whether it is mapped."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        first = file.read(64)
    if not size:
        raise ModelError("load", f"{path.name} is empty")
    if first.startswith(b"version https://git-lfs"):
        raise ModelError("load", f"{path.name} is a Git LFS pointer, not the weights; `git lfs pull` fetches them")
    zipped = first.startswith(b"PK")
    if not zipped:
        notes.append(f"{path.name} is in the old format of torch.save: all of it is in memory at once")
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped), zipped
    except pickle.UnpicklingError as error:
        # The rest of what PyTorch says advises to run it all the same.
        found = re.search(r"GLOBAL (\S+)|(Unsupported \w+ \d+)", str(error))
        why = f" ({found[1] or found[2]})" if found else ""
        raise ModelError(
            "load", f"{path.name} holds more than weights{why}, and is not run; its tensors alone can be read"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError("load", f"{path.name} is cut or damaged: {error}") from None


def _tensors(loaded: Any, path: Path, notes: list[str]) -> Mapping[str, Any]:
    """The mapping of names to tensors in what was loaded."""
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
    """Let the kernel take back the pages of a mapped file: read once, they count as ours until the file is closed.

    Only for a tensor that is mapped and that nobody has written to: its pages come back from the file when they are
    looked at, while those of any other memory would come back as zeros.
    """
    if not tensor.is_contiguous():
        return
    begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > begin:
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), ctypes.c_int(_DONTNEED))
