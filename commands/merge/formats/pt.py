"""PyTorch's .pt: loaded on the CPU, without running the code that a pickle names unless asked. Holds all parts."""

from __future__ import annotations

import pickle
import re
import warnings
from _compat_pickle import IMPORT_MAPPING
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch

from ..join.dicts import Arrays
from ..join.whole_files import WholeFileFormat
from ..parts.model import MergePart, MergeRefused, PartUnreadable, shown
from ..write.output import MergeOutput

HAS_NUMPY = find_spec("numpy") is not None  # tensors need none
if HAS_NUMPY:
    import numpy as np

    from .npz import NumpyArrays

_GLOBAL = re.compile(r"(?:GLOBAL|class|type|function) '?([A-Za-z_][\w.]*)\.(\w+)")


class TorchTensors(Arrays):
    """The tensors of PyTorch, and the arrays of NumPy where it is installed."""

    def __init__(self) -> None:
        self._numpy: Any = NumpyArrays() if HAS_NUMPY else Arrays()

    def holds(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor) or self._numpy.holds(value)

    def dtype(self, value: Any) -> str:
        if self._numpy.holds(value):
            return f"NumPy {self._numpy.dtype(value)}"
        return str(value.dtype).removeprefix("torch.")

    def join(self, values: Sequence[Any], places: Sequence[int] | None) -> Any:
        if self._numpy.holds(values[0]):
            return self._numpy.join(values, places)
        if values[0].is_quantized:  # those of another scale would be rounded
            raise RuntimeError("they are quantized")
        joined = torch.cat(list(values))
        return joined if places is None else joined[torch.tensor(places, dtype=torch.int64)]

    def stack(self, values: Sequence[Any]) -> Any:
        return self._numpy.stack(values) if self._numpy.holds(values[0]) else torch.stack(list(values))

    def equal(self, one: Any, other: Any) -> bool:
        if self._numpy.holds(one):
            return bool(self._numpy.equal(one, other))
        return bool(torch.equal(one, other)) or bool(one.ne(one).all() and other.ne(other).all())

    def add(self, values: Sequence[Any]) -> Any:
        if self._numpy.holds(values[0]):
            return self._numpy.add(values)
        stacked = torch.stack(list(values))
        if stacked.is_floating_point() or stacked.is_complex():
            return stacked.sum(0).to(stacked.dtype)
        return torch.from_numpy(self._numpy.add([value.numpy() for value in values]))


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
        torch.serialization.add_safe_globals(_numpy_globals())
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


def _numpy_globals() -> list[Any]:
    """Return what a pickle names for plain NumPy scalars and arrays, under the names of NumPy 1 too."""
    if not HAS_NUMPY:
        return []
    makers = {"_reconstruct": np.array(0).__reduce__()[0], "scalar": np.float64(0).__reduce__()[0]}
    named = [(maker, f"numpy.{core}.multiarray.{name}") for core in ("core", "_core") for name, maker in makers.items()]
    kinds = [type(np.dtype(code)) for code in np.typecodes["All"] if code != "O"]
    return [*named, np.ndarray, np.dtype, *dict.fromkeys(kinds)]
