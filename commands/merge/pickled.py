"""PyTorch's .pt: loaded on the CPU, without running what a pickle names unless asked. Holds all parts in memory."""

from __future__ import annotations

import re
import warnings
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Sequence
from typing import Any

import torch

from .objects import merge_whole
from .output import Output
from .parts import ItemOrder, Merged, Options, Part
from .rules import wrapped
from .trouble import PartUnreadable, Refused, Told, clean

_GLOBAL = re.compile(r"(?:GLOBAL|class|type|function) ([A-Za-z_][\w.]*\.[\w.]+)")


class Tensors:
    """What tensors can do."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def shape(self, value: Any) -> tuple[int, ...]:
        return tuple(value.shape)

    def dtype(self, value: Any) -> str:
        kind = "" if value.layout is torch.strided else f" ({str(value.layout).removeprefix('torch.')})"
        if value.is_quantized:  # joined, those of another scale would be rounded to that of the first
            per_tensor = value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
            scale = f"scale {value.q_scale()}, zero {value.q_zero_point()}" if per_tensor else "scales by channel"
            kind = f"{kind} ({scale})"
        return str(value.dtype).removeprefix("torch.") + kind

    def join(self, values: Sequence[Any], places: Sequence[int] | None) -> Any:
        joined = torch.cat(list(values))
        return joined if places is None else joined[torch.tensor(places, dtype=torch.int64)]

    def stack(self, values: Sequence[Any]) -> Any:
        return torch.stack(list(values))

    def add(self, values: Sequence[Any]) -> Any:
        stacked = torch.stack(list(values))
        made = stacked.sum(0).to(stacked.dtype)
        whole = not (made.is_floating_point() or made.is_complex())
        if whole and wrapped(made.double(), stacked.double().sum(0), made.element_size() * 8):
            raise OverflowError
        return made

    def equal(self, one: Any, other: Any) -> bool:
        return bool(torch.equal(one, other)) or bool(one.ne(one).all() and other.ne(other).all())


def merge_pt(parts: Sequence[Part], out: Output, order: ItemOrder | None, options: Options, told: Told) -> Merged:
    if options.allow_pickle:
        told.note("--allow-pickle: the code that these files name was run to read them")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about what the parts are
        try:
            value, merged = merge_whole(
                parts, lambda part: _load(part, options.allow_pickle), Tensors(), order, options.sums, told
            )
        except RuntimeError as error:  # nested tensors, no memory, what torch cannot join
            raise Refused(f"torch cannot join these: {clean(str(error), 200)}", where=out.path) from None
        if value is not None:
            with out.file() as file:
                try:
                    torch.save(_detached(value), file)
                except (RuntimeError, TypeError, AttributeError) as error:
                    if isinstance(error.__context__, OSError):  # torch says only that less was written
                        raise error.__context__ from None
                    raise Refused(f"cannot be written: {clean(error)}", where=out.path) from None
    return merged


def _detached(value: Any) -> Any:
    """The same without gradients, views of larger tensors and parameters."""
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        if plain.layout is torch.strided and plain.untyped_storage().nbytes() > plain.numel() * plain.element_size():
            return plain.clone()
        return plain
    if type(value) is dict:
        return {key: _detached(held) for key, held in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_detached(held) for held in value)
    return value


def _load(part: Part, allow_pickle: bool) -> Any:
    try:
        return torch.load(part.path, map_location="cpu", weights_only=not allow_pickle)
    except OSError:
        raise
    except Exception as error:  # torch, pickle and zip each have their own
        raise PartUnreadable(_why(part, error, allow_pickle)) from None


def _why(part: Part, error: Exception, allow_pickle: bool) -> str:
    said = str(error)
    if part.size == 0:
        return "is empty"
    if isinstance(error, EOFError) or "central directory" in said or "PytorchStreamReader" in said:
        return "is cut, or no file of torch.save: its end is missing"
    if not allow_pickle and "eights_only" in said:
        names = _unsafe_names(part) or _GLOBAL.findall(said)
        if names:
            more = " (a NumPy number or array)" if any(name.startswith("numpy") for name in names) else ""
            which = clean(", ".join(dict.fromkeys(names)))
            return f"holds {which}{more}, which is not loaded without trust; --allow-pickle runs the code that it names"
        return f"is no file of torch.save, or damaged: {clean(said.splitlines()[0] if said else error, 120)}"
    return f"cannot be loaded: {clean(type(error).__name__)}: {clean(said, 160)}"


def _unsafe_names(part: Part) -> list[str]:
    """What the pickle names, by the names of today: torch.save writes those of Python 2."""
    try:
        found = [str(name) for name in torch.serialization.get_unsafe_globals_in_checkpoint(part.path)]
    except Exception:  # a pickle that is damaged, or of another kind
        return []
    names = []
    for name in found:
        module, _, word = name.rpartition(".")
        module, word = NAME_MAPPING.get((module, word), (IMPORT_MAPPING.get(module, module), word))
        names.append(f"{module}.{word}")
    return names
