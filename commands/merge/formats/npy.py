"""NumPy's .npy: joined on axis 0. Rows are copied as bytes, and held only to change their order."""

from __future__ import annotations

import io
import warnings
from typing import Any

from numpy.lib import format as npy

from ..join.stored_arrays import StoredArray, StoredArrays
from ..join.whole_files import WholeFileFormat
from ..parts.model import MergePart, PartUnreadable
from ..write.output import MergeOutput


class NumpyFiles(WholeFileFormat):
    """The arrays of .npy parts."""

    noun = ".npy file"
    arrays = StoredArrays()

    def read(self, part: MergePart) -> StoredArray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers by Python 2, and of words that are no Python any more
            array = npy.open_memmap(part.path, mode="r")
        if not array.shape:
            raise PartUnreadable("is a scalar: it has no axis 0")
        if not array.flags.c_contiguous:  # stored by columns: turned in memory
            return StoredArray(array.dtype, array.shape, array.nbytes, data=array.tobytes("C"))
        return StoredArray(array.dtype, array.shape, array.nbytes, part, array.offset)

    def save(self, merged: Any, out: MergeOutput) -> None:
        header = io.BytesIO()
        fields = {"descr": npy.dtype_to_descr(merged.dtype), "fortran_order": False, "shape": merged.shape}
        npy.write_array_header_2_0(header, fields)
        out.write(header.getvalue())
        for chunk in merged.chunks():
            out.write(chunk)
