"""PyTorch's .pt: loaded on the CPU, without running the code that a pickle names unless asked. Holds all parts."""

from __future__ import annotations

import pickle
import re
import warnings
from _compat_pickle import IMPORT_MAPPING
from collections.abc import Sequence
from typing import Any

import torch

from ..join.dicts import Arrays
from ..join.whole_files import WholeFileFormat
from ..parts.model import MergePart, MergeRefused, PartUnreadable, shown
from ..write.output import MergeOutput

_GLOBAL = re.compile(r"(?:GLOBAL|class|type|function) ([A-Za-z_][\w.]*)\.(\w+)")


class TorchTensors(Arrays):
    """The tensors of PyTorch."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def dtype(self, value: Any) -> str:
        return str(value.dtype).removeprefix("torch.")

    def join(self, values: Sequence[Any], places: Sequence[int] | None) -> Any:
        if values[0].is_quantized:  # those of another scale would be rounded
            raise RuntimeError("they are quantized")
        joined = torch.cat(list(values))
        return joined if places is None else joined[torch.tensor(places, dtype=torch.int64)]

    def stack(self, values: Sequence[Any]) -> Any:
        return torch.stack(list(values))

    def equal(self, one: Any, other: Any) -> bool:
        return bool(torch.equal(one, other)) or bool(one.ne(one).all() and other.ne(other).all())

    def add(self, values: Sequence[Any]) -> Any:
        stacked = torch.stack(list(values))
        if stacked.is_floating_point() or stacked.is_complex():
            return stacked.sum(0).to(stacked.dtype)
        from .npz import NumpyArrays

        return torch.from_numpy(NumpyArrays().add([value.numpy() for value in values]))


class TorchFiles(WholeFileFormat):
    """The objects of .pt parts."""

    noun = "file of torch.save"
    arrays = TorchTensors()

    def write(self, out: MergeOutput) -> int | None:
        if self.task.options.allow_pickle:
            self.task.report.note("--allow-pickle: the code that these files name was run to read them")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about the parts
            try:
                return super().write(out)
            except RuntimeError as error:  # nested tensors, no memory, what torch cannot join or write
                if isinstance(error.__context__, OSError):  # torch says only that less was written
                    raise error.__context__ from None
                raise MergeRefused(f"torch cannot join these: {shown(error, 200)}", where=out.path) from None

    def read(self, part: MergePart) -> Any:
        try:
            return torch.load(part.path, map_location="cpu", weights_only=not self.task.options.allow_pickle)
        except pickle.UnpicklingError as error:
            if not (match := _GLOBAL.search(str(error))):
                raise
            name = f"{IMPORT_MAPPING.get(match[1], match[1])}.{match[2]}"  # the pickle has the names of Python 2
            hint = "--allow-pickle runs the code that it names"
            raise PartUnreadable(f"holds {shown(name)}, which is not loaded without trust; {hint}") from None

    def save(self, merged: Any, out: MergeOutput) -> None:
        torch.save(merged, out.file)
