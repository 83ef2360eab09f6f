"""A record a line: JSON Lines, of which each is checked, and plain text. Writes them as they stand.

Builds no objects where that can be helped.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from .blocks import BOM, whole_lines
from .output import Output
from .parts import Options, Part
from .records import NO_KEY, Record, field_identity
from .trouble import Told, clean

_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|-?Infinity|NaN', re.DOTALL)
_PIECE = 1 << 15
_lines = msgspec.json.Decoder(msgspec.Raw).decode_lines


class BadRecord(Exception):
    """A line that is no record, and why."""


class JsonLines:
    """The records of .jsonl parts. What goes between them is in them: each ends in a newline."""

    prefix = b""
    separator = b""
    suffix = b""

    def __init__(self, options: Options, told: Told, chunk: int) -> None:
        self.told = told
        self.chunk = chunk
        self.nan = options.nan
        self.key = None if options.key is None else _field_decoder(options.key)

    def copy(self, part: Part, out: Output) -> None:
        """Add all records of one part to the output: whole blocks at once, as long as all in them are right."""
        digest = hashlib.sha256()
        part.records, line = 0, 1
        with open(part.path, "rb", buffering=0) as file:
            for block in out.blocks.read(file, digest):
                if (found := plain_records(block.buffer, block.view, block.begin, block.end)) is not None:
                    block.ticket = out.write_block(block.lines)
                    part.records += found
                    line += found
                    continue
                chunk = bytes(block.lines)
                for number, text in enumerate(_split(chunk), line):
                    for record in self.check(part, number, text):
                        out.write(record)
                        part.records += 1
                line += chunk.count(b"\n")
        out.hasher.settle()
        part.sha256 = digest.hexdigest()

    def records(self, part: Part) -> Iterator[Record]:
        """(line, record with its newline, identity of its key or None), one by one."""
        line = 1
        with open(part.path, "rb", buffering=0) as file:
            for chunk in whole_lines(file, self.chunk):
                plain = plain_records(bytearray(chunk), memoryview(chunk), 0, len(chunk)) is not None
                for number, text in enumerate(_split(chunk), line):
                    for record in (text,) if plain else self.check(part, number, text):
                        if self.key is None:
                            yield number, record, None
                        elif (key := self.key(record)) is not None:
                            yield number, record, key
                        else:
                            self.told.leave_out(part.name, number, NO_KEY)
                line += chunk.count(b"\n")

    def check(self, part: Part, number: int, text: bytes) -> list[bytes]:
        """The records of one line, each with its newline: one, or none, or the two of a line that lacks a newline."""
        body = text.strip(b" \t\r\n")
        if body.startswith(BOM):  # of a file that somebody has added to another
            self.told.note_at(part.name, number, "a byte order mark before it is dropped")
            text = text.replace(BOM, b"", 1)
            body = text.strip(b" \t\r\n")
        if not body:
            return []
        try:
            found, swapped = check_line(body, self.nan, ended=text.endswith(b"\n"))
        except BadRecord as error:
            self.told.leave_out(part.name, number, str(error))
            return []
        if len(found) > 1:
            self.told.note_at(part.name, number, f"{len(found)} records on one line; each gets its own")
        if swapped:
            what = "is written as null" if self.nan == "null" else "is written as it is, which is not JSON"
            self.told.note_at(part.name, number, f"{swapped} {what} (--nan)")
        if len(found) == 1 and not swapped:
            return [text if text.endswith(b"\n") else text + b"\n"]
        return [record + b"\n" for record in found]


class TextLines:
    """The lines of .txt parts, kept byte for byte."""

    prefix = b""
    separator = b""
    suffix = b""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk

    def copy(self, part: Part, out: Output) -> None:
        """Add one part to the output; its last line gets the newline that it lacks."""
        digest = hashlib.sha256()
        part.records = 0
        with open(part.path, "rb", buffering=0) as file:
            for block in out.blocks.read(file, digest):
                part.records += block.buffer.count(b"\n", block.begin, block.end)
                block.ticket = out.write_block(block.lines)
                if not block.ended():
                    out.write(b"\n")
                    part.records += 1
        out.hasher.settle()
        part.sha256 = digest.hexdigest()

    def records(self, part: Part) -> Iterator[Record]:
        line = 0
        with open(part.path, "rb", buffering=0) as file:
            for chunk in whole_lines(file, self.chunk):
                for text in chunk.removesuffix(b"\n").split(b"\n"):
                    line += 1
                    yield line, text + b"\n", None


# ---- JSON ------------------------------------------------------------------------------------------


def plain_records(buffer: bytearray, view: memoryview, begin: int, end: int) -> int | None:
    """How many records these whole lines are, if each line is exactly one and right; else None.

    Joined by newlines the records have to be the lines again, and there have to be as many newlines as records. So
    no two records share a line, and none goes over two: each newline is one of those between the records.
    """
    try:
        records = _lines(view[begin:end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    count = len(records)
    if not count or buffer.count(b"\n", begin, end) != count:
        return None
    joined = b"\n".join([*records, b""])
    if len(joined) != end - begin or not buffer.startswith(joined, begin):
        return None
    # Which encoding it is, msgspec does not look at.
    return count if joined.isascii() or is_utf8(view[begin:end]) else None


def is_utf8(data: memoryview) -> bool:
    """Whether this is UTF-8 to its end. Decoded in small pieces: large ones cost fresh memory each time."""
    at, end = 0, len(data)
    try:
        while at < end:
            piece = data[at : at + _PIECE]
            at += codecs.utf_8_decode(piece, "strict", at + len(piece) >= end)[1]
    except UnicodeDecodeError:
        return False
    return True


def check_line(body: bytes, nan: str, *, ended: bool) -> tuple[list[bytes], str]:
    """The records of a line, and which word that JSON does not know was in it; BadRecord where it is none."""
    if body.strip(b"\0") == b"":
        raise BadRecord("holds only NUL bytes: it was allocated and never written")
    try:
        str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise BadRecord(f"is not UTF-8 (byte {error.start + 1} of the line)") from None
    try:
        raws = [bytes(raw) for raw in _lines(body)]
    except (msgspec.MsgspecError, RecursionError):
        return _as_python_reads(body, nan, ended=ended)
    if len(raws) > 1 and not all(raw[:1] in (b"{", b"[") for raw in raws):
        raise BadRecord(f"holds {len(raws)} values")
    return raws, ""


def _as_python_reads(body: bytes, nan: str, *, ended: bool) -> tuple[list[bytes], str]:
    words: list[str] = []
    try:
        json.loads(body.decode(), parse_constant=words.append)  # as text: of bytes it guesses the encoding
    except RecursionError:
        raise BadRecord("is nested too deeply to be read") from None
    except ValueError as error:
        if not ended and _is_cut(body):
            raise BadRecord("is cut: the file ends inside this record") from None
        raise BadRecord(f"is no JSON: {clean(error)}") from None
    if not words:  # a half of a surrogate pair, which Python's json takes
        return [body], ""
    if nan == "refuse":
        raise BadRecord(f"holds {words[0]}, which is not JSON (--nan null or --nan keep takes it)")
    return [nulled(body) if nan == "null" else body], words[0]


def _is_cut(body: bytes) -> bool:
    """Whether a text that is no JSON might go on to become some: nothing is wrong in it but its end."""
    text = body.decode("utf-8", "replace")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string") or (error.msg != "Extra data" and error.pos >= len(text) - 9)
    except (ValueError, RecursionError):
        pass
    return False


def nulled(text: bytes) -> bytes:
    """The same JSON text with null for NaN and the infinities."""
    return _TOKENS.sub(lambda match: match[0] if match[0][:1] == b'"' else b"null", text)


def _split(chunk: bytes) -> list[bytes]:
    """Its lines with their newlines. Only `\\n` ends a line."""
    lines = [line + b"\n" for line in chunk.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _field_decoder(name: str) -> Any:
    """A function of a record that gives the identity of one field's value, or None."""

    def slowly(record: bytes) -> bytes | None:
        try:
            found = json.loads(record)
        except (ValueError, RecursionError):
            return None
        return field_identity(found[name]) if isinstance(found, dict) and name in found else None

    try:
        only = msgspec.defstruct("Only", [("value", msgspec.Raw, msgspec.Raw(b""))], rename={"value": name})
    except ValueError:  # it knows no names with quotes, backslashes or control characters
        return slowly
    decode: Any = msgspec.json.Decoder(only).decode

    def identity(record: bytes) -> bytes | None:
        try:
            raw = bytes(decode(record).value)
        except msgspec.MsgspecError:  # no object, or one that only Python's json reads
            return slowly(record)
        if not raw:
            return None
        return raw if b"\\" not in raw and raw[:1] not in (b"{", b"[") else field_identity(json.loads(raw))

    return identity
