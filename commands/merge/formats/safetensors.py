"""safetensors: each tensor by its name, joined on dimension 0. Copies bytes, so every dtype will do."""

from __future__ import annotations

import json
from typing import Any

from gpusched.common.weights.safetensors_header import DTYPE_BITS, read_header

from ..join.stored_arrays import StoredArray, StoredArrays
from ..join.whole_files import WholeFileFormat
from ..parts.model import MergePart, shown
from ..write.output import MergeOutput


class SafetensorsFiles(WholeFileFormat):
    """The tensors of .safetensors parts, and their texts."""

    noun = "safetensors file"
    arrays = StoredArrays()

    def read(self, part: MergePart) -> dict[str, StoredArray]:
        header = read_header(part.path)
        part.values = header.metadata
        entries = header.tensors.values()
        return {one.name: StoredArray(one.dtype, one.shape, one.size_bytes, part, one.begin) for one in entries}

    def save(self, merged: Any, out: MergeOutput) -> None:
        several = [part.values for part in self.task.parts if not part.skipped]
        texts = {key: text for key, text in several[0].items() if all(one.get(key) == text for one in several)}
        if lost := sorted({key for one in several for key in one} - texts.keys()):
            self.task.report.note(f"{shown(', '.join(lost))}: the texts differ from part to part, and are left out")
        # Those of wide elements first: each is then aligned.
        tensors = sorted(merged.items(), key=lambda item: (-DTYPE_BITS[item[1].dtype], item[0]))
        fields: dict[str, Any] = {"__metadata__": texts} if texts else {}
        at = 0
        for name, one in tensors:
            fields[name] = {"dtype": one.dtype, "shape": one.shape, "data_offsets": [at, at + one.size_bytes]}
            at += one.size_bytes
        header = json.dumps(fields, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        out.write(len(header).to_bytes(8, "little") + header)
        for _, one in tensors:
            for chunk in one.chunks():
                out.write(chunk)
