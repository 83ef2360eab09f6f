"""Plain text: the lines of the parts, kept byte for byte."""

from __future__ import annotations

from ..join.records import Checked, LineFormat
from ..parts.model import MergePart, MergeReport


class TextLines(LineFormat):
    """The lines of .txt parts; the last one gets the newline that it lacks."""

    def check(self, part: MergePart, line: int, block: bytes, report: MergeReport) -> Checked:
        text = block if block.endswith(b"\n") else block + b"\n"
        yield line, text, text.count(b"\n")
