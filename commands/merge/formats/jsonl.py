"""JSON Lines: every record is checked, and written as it stands. Builds no objects where that can be helped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec

from ..join.line_blocks import BOM, LINE, LineFormat
from ..join.records import field_identity
from ..parts.model import MergePart
from ..parts.report import MergeReport, shown

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|-?Infinity|NaN', re.DOTALL)
_decode_lines = msgspec.json.Decoder(msgspec.Raw).decode_lines


class _BadRecord(Exception):
    """The reason why a line is no record."""


class JsonLines(LineFormat):
    """The lines of .jsonl parts."""

    def check(self, part: MergePart, line: int, block: bytes, report: MergeReport) -> Iterator[tuple[int, bytes, int]]:
        count = count_records(block)
        if count is not None:
            yield line, block, count
            return
        for number, text in enumerate(LINE.findall(block), line):
            body = text.strip(b" \t\r\n")
            if body.startswith(BOM):  # of a file that somebody has added to another
                report.note_at(part.name, number, "a byte order mark before it is dropped")
                text, body = text.replace(BOM, b"", 1), body.removeprefix(BOM).strip(b" \t\r\n")
            try:
                records, word = _read_line(body, is_ended=text.endswith(b"\n")) if body else ([], "")
                if word and self.options.nan == "refuse":
                    raise _BadRecord(f"holds {word}, which is not JSON (--nan null writes null)")
            except _BadRecord as error:
                report.leave_out(part.name, number, str(error))
                continue
            if word:
                report.note_at(part.name, number, f"{word} is written as null (--nan)")
                yield number, nulled(body) + b"\n", 1
            elif len(records) > 1:
                report.note_at(part.name, number, f"{len(records)} records on one line: each gets its own")
                yield from ((number, record + b"\n", 1) for record in records)
            elif records:
                yield number, text if text.endswith(b"\n") else text + b"\n", 1

    def identity(self, record: bytes) -> bytes | None:
        value = json.loads(record)
        key = self.options.key
        return field_identity(value[key]) if isinstance(value, dict) and key in value else None


def count_records(block: bytes) -> int | None:
    """Return the number of records of these whole lines if each line is exactly one and right, else None.

    Joined by newlines the records have to be the block again, and there have to be as many newlines as records. So no
    two records share a line, and none goes over two.
    """
    try:
        records = _decode_lines(block)
        if not records or block.count(b"\n") != len(records) or b"\n".join([*records, b""]) != block:
            return None
        if not block.isascii():
            block.decode()  # msgspec does not look at the encoding
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return len(records)


def _read_line(body: bytes, *, is_ended: bool) -> tuple[list[bytes], str]:
    """Return the records of a line, and the first word in it that JSON does not know. _BadRecord where it is none."""
    if body.strip(b"\0") == b"":
        raise _BadRecord("holds only NUL bytes: it was allocated and never written")
    try:
        text = body.decode()
        records = [bytes(raw) for raw in _decode_lines(body)]
    except UnicodeDecodeError as error:
        raise _BadRecord(f"is not UTF-8 (byte {error.start + 1} of the line)") from None
    except (msgspec.MsgspecError, RecursionError):  # NaN, halves of surrogate pairs, or no JSON
        words: list[str] = []
        try:
            json.loads(text, parse_constant=words.append)
        except RecursionError:
            raise _BadRecord("is nested too deeply to be read") from None
        except ValueError as error:
            is_part = not is_ended and isinstance(error, json.JSONDecodeError) and is_cut(error)
            why = "is cut: the file ends inside this record" if is_part else f"is no JSON: {shown(error)}"
            raise _BadRecord(why) from None
        return [body], "".join(words[:1])
    if len(records) > 1 and not all(record[:1] in (b"{", b"[") for record in records):
        raise _BadRecord(f"holds {len(records)} values")
    return records, ""


def is_cut(error: json.JSONDecodeError) -> bool:
    """Return True if nothing is wrong in a text but its end."""
    is_open_string = error.msg.startswith("Unterminated string")
    return is_open_string or (error.msg != "Extra data" and error.pos >= len(error.doc) - 9)


def nulled(text: bytes) -> bytes:
    """Return the same JSON text with null for NaN and the infinities."""
    return _TOKENS.sub(lambda match: match[0] if match[0][:1] == b'"' else b"null", text)
