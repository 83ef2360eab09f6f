"""Plain text: the lines of the parts, kept byte for byte."""

from __future__ import annotations

from ..join.records import LINE, Checked, LineFormat
from ..parts.model import MergePart, MergeReport


class TextLines(LineFormat):
    """The lines of .txt parts; the last one gets the newline that it lacks."""

    def check(self, part: MergePart, line: int, block: bytes, report: MergeReport) -> Checked:
        text = block if block.endswith(b"\n") else block + b"\n"
        if b"\0" not in text:
            yield line, text, text.count(b"\n")
            return
        for number, one in enumerate(LINE.findall(text), line):
            if b"\0" in one:
                report.leave_out(part.name, number, "holds NUL bytes, and so is no text")
            else:
                yield number, one, 1
