"""JSON Lines: every record is checked, and written as it stands. Builds no objects where that can be helped."""

from __future__ import annotations

import json
import re

import msgspec

from ..join.records import LINE, Checked, LineFormat, field_identity
from ..parts.model import MergePart, MergeReport, MergeTask, shown

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|-?Infinity|NaN', re.DOTALL)
_decode_lines = msgspec.json.Decoder(msgspec.Raw).decode_lines


class JsonLines(LineFormat):
    """The lines of .jsonl parts."""

    def check(self, part: MergePart, line: int, block: bytes, report: MergeReport) -> Checked:
        if (count := count_records(block)) is not None:
            yield line, block, count
            return
        for number, text in enumerate(LINE.findall(block), line):
            body = text.strip(b" \t\r\n")
            try:
                records = read_line(body) if body else []
            except (ValueError, RecursionError) as error:
                word = "no JSON" if text.endswith(b"\n") else "cut, or no JSON"
                report.leave_out(part.name, number, f"is {word}: {shown(error)}")
                continue
            if len(records) > 1:
                report.note_at(part.name, number, f"{len(records)} records on one line: each gets its own")
                yield from ((number, record + b"\n", 1) for record in records)
            elif records and (plain := without_nan(body, self.task, report, part.name, number)):
                yield number, text if plain == body and text.endswith(b"\n") else plain + b"\n", 1

    def identity(self, record: bytes) -> bytes | None:
        value, key = json.loads(record), self.options.key
        return field_identity(value[key]) if isinstance(value, dict) and key in value else None


def count_records(block: bytes) -> int | None:
    """Return the number of records of these whole lines if each line is exactly one and right, else None."""
    try:
        records = _decode_lines(block)
        # So no two records share a line, and none goes over two.
        if not records or block.count(b"\n") != len(records) or b"\n".join([*records, b""]) != block:
            return None
        if not block.isascii():
            block.decode()  # msgspec does not look at the encoding
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return len(records)


def read_line(body: bytes) -> list[bytes]:
    """Return the records of a line. ValueError or RecursionError where it has none."""
    text = body.decode()
    try:
        records = [bytes(raw) for raw in _decode_lines(body)]
    except (msgspec.MsgspecError, RecursionError):  # NaN, halves of surrogate pairs, or no JSON
        json.loads(text)
        return [body]
    if len(records) > 1 and not all(record[:1] in (b"{", b"[") for record in records):
        raise ValueError(f"{len(records)} values on one line")
    return records


def without_nan(text: bytes, task: MergeTask, report: MergeReport, part: str, line: int) -> bytes:
    """Return JSON text with null for NaN and the infinities, which is reported; nothing if --nan refuses them."""
    if b"NaN" not in text and b"Infinity" not in text:
        return text
    plain = _TOKENS.sub(lambda match: match[0] if match[0][:1] == b'"' else b"null", text)
    if plain != text and task.options.nan == "refuse":
        report.leave_out(part, line, "holds NaN or Infinity, which is not JSON (--nan null writes null)")
        return b""
    if plain != text:
        report.note_at(part, line, "NaN or Infinity is written as null (--nan)")
    return plain
