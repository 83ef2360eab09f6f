"""NumPy's .npz: each array by its name, by the rules for dicts. Holds all parts."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib import format as npy

from ..join.dicts import Arrays
from ..join.whole_files import WholeFileFormat
from ..parts.model import MergePart, MergeTask, PartUnreadable, shown
from ..write.output import MergeOutput


class NumpyArrays(Arrays):
    """The arrays of NumPy."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def dtype(self, value: Any) -> str:
        """Return the type; of text without its width: the widest holds all, and every part has another one."""
        return {"U": "text", "S": "bytes"}.get(value.dtype.kind) or str(value.dtype)

    def join(self, values: Sequence[Any], places: Sequence[int] | None) -> Any:
        joined = np.concatenate(list(values))
        return joined if places is None else joined[np.asarray(places, dtype=np.int64)]

    def stack(self, values: Sequence[Any]) -> Any:
        return np.stack(list(values))

    def equal(self, one: Any, other: Any) -> bool:
        return bool(np.array_equal(one, other)) or bool(one != one and other != other)

    def add(self, values: Sequence[Any]) -> Any:
        """Return the sum; whole numbers are added as Python's, which have no limit."""
        dtype = values[0].dtype
        if dtype.kind in "fc":
            return np.asarray(np.stack(list(values)).sum(axis=0, dtype=dtype))
        if dtype.kind not in "iu":
            raise TypeError
        total = np.sum([value.astype(object) for value in values], axis=0)
        if np.size(total) and not np.iinfo(dtype).min <= np.min(total) <= np.max(total) <= np.iinfo(dtype).max:
            raise OverflowError
        return np.asarray(total, dtype=dtype)


class NumpyArchives(WholeFileFormat):
    """The archives of .npz parts."""

    noun = ".npz file"
    arrays = NumpyArrays()

    def __init__(self, task: MergeTask) -> None:
        super().__init__(task)
        self._method = zipfile.ZIP_STORED  # deflated if one part is

    def read(self, part: MergePart) -> Any:
        with warnings.catch_warnings(), open(part.path, "rb") as file:
            warnings.simplefilter("ignore")  # of headers by Python 2
            with np.load(file, allow_pickle=False) as arrays:
                values = {name: arrays[name] for name in arrays.files}
                self._method = max(self._method, *(one.compress_type for one in arrays.zip.infolist()), 0)
        if others := [name for name, value in values.items() if not isinstance(value, np.ndarray)]:
            raise PartUnreadable(f"holds {shown(others[0])!r}, which is no array")
        part.values = {k: v.item() for k, v in values.items() if not v.shape and v.dtype.kind in "biufU"}
        return values

    def save(self, merged: Any, out: MergeOutput) -> None:
        with zipfile.ZipFile(out.file, "w", self._method) as archive:
            for name, value in merged.items():  # a member that is opened has no date: the same parts, the same bytes
                with archive.open(f"{name}.npy", "w", force_zip64=True) as into:
                    npy.write_array(into, np.asanyarray(value), allow_pickle=False)
