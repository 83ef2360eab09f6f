"""PyTorch's .pt: loaded on the CPU, without running the code that a pickle names unless asked. Holds all parts."""

from __future__ import annotations

import re
import warnings
from _compat_pickle import IMPORT_MAPPING
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..join.dicts import Arrays
from ..join.whole_files import WholeFileFormat
from ..parts.model import Joined, MergePart
from ..parts.report import MergeRefused, PartUnreadable, shown
from ..write.output import MergeOutput

_GLOBAL = re.compile(r"(?:GLOBAL|class|type|function) ([A-Za-z_][\w.]*\.[\w.]+)")


class TorchTensors(Arrays):
    """The tensors of PyTorch."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def dtype(self, value: Any) -> str:
        layout = "" if value.layout is torch.strided else f" ({str(value.layout).removeprefix('torch.')})"
        if value.is_quantized:  # joined, those of another scale would be rounded to that of the first
            is_per_tensor = value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
            layout = f" (scale {value.q_scale()}, zero {value.q_zero_point()})" if is_per_tensor else " (by channel)"
        return str(value.dtype).removeprefix("torch.") + layout

    def join(self, values: Sequence[Any], places: Sequence[int] | None) -> Any:
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

    arrays = TorchTensors()

    def write(self, out: MergeOutput) -> Joined:
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
        except OSError:
            raise
        except Exception as error:  # torch, pickle and zip each have their own
            raise PartUnreadable(_reason(part, error)) from None

    def save(self, merged: Any, out: MergeOutput) -> None:
        with out.file() as file:
            try:
                torch.save(_detached(dict(merged) if isinstance(merged, Iterator) else merged), file)
            except (TypeError, AttributeError) as error:
                raise MergeRefused(f"cannot be written: {shown(error)}", where=out.path) from None


def _detached(value: Any) -> Any:
    """Return the same without gradients, views of larger tensors and parameters."""
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        is_view = plain.layout is torch.strided and plain.untyped_storage().nbytes() > plain.nbytes
        return plain.clone() if is_view else plain
    if type(value) is dict:
        return {key: _detached(held) for key, held in value.items()}
    return type(value)(map(_detached, value)) if type(value) in (list, tuple) else value


def _reason(part: MergePart, error: Exception) -> str:
    """Return in words why a part cannot be loaded."""
    text = str(error)
    if part.size == 0:
        return "is empty"
    if isinstance(error, EOFError) or "central directory" in text or "PytorchStreamReader" in text:
        return "is cut, or no file of torch.save: its end is missing"
    if "eights_only" not in text:
        return f"cannot be loaded: {shown(type(error).__name__)}: {shown(text, 160)}"
    try:
        found = [name.rpartition(".") for name in torch.serialization.get_unsafe_globals_in_checkpoint(part.path)]
        names = [f"{IMPORT_MAPPING.get(module, module)}.{word}" for module, _, word in found]  # they are of Python 2
    except Exception:  # a pickle that is damaged, or of another kind
        names = _GLOBAL.findall(text)
    if not names:
        return f"is no file of torch.save, or damaged: {shown(text.splitlines()[0], 120)}"
    more = " (a NumPy number or array)" if any(name.startswith("numpy") for name in names) else ""
    which = f"{shown(', '.join(dict.fromkeys(names)))}{more}"
    return f"holds {which}, which is not loaded without trust; --allow-pickle runs the code that it names"
