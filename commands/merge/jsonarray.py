"""JSON documents: arrays are joined element by element, objects become a list. Holds one element at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from .lines import nulled
from .objects import merge_whole, plain_values
from .output import Output
from .parts import ItemOrder, Merged, Options, Part
from .records import NO_KEY, Record, field_identity
from .rules import NoArrays
from .trouble import PartUnreadable, Refused, Told, clean

_BLANK = re.compile(r"[ \t\n\r]*")


class JsonDocuments:
    """The elements of .json parts, in their own text. The output is one array, an element a line."""

    prefix = b"["
    separator = b","
    suffix = b"\n]\n"

    def __init__(self, options: Options, told: Told, chunk: int) -> None:
        self.told = told
        self.chunk = chunk
        self.nan = options.nan
        self.key = options.key
        self._kinds: dict[str, str] = {}  # array or object -> the first part that is one

    def records(self, part: Part) -> Iterator[Record]:
        words: list[str] = []
        decode = json.JSONDecoder(parse_constant=words.append).raw_decode
        window = _Window(part, decode, self.chunk)
        first = window.peek()
        if first == "":
            self.told.note(f"{clean(part.name)} is empty: it is skipped")
            return
        if first not in "[{":
            raise PartUnreadable("is neither a JSON array nor an object", window.line)
        self._kinds.setdefault("an array" if first == "[" else "an object", part.name)
        if first == "{":
            yield from self._record(part, window, words)
        else:
            window.skip("[")
            while window.peek() != "]":
                yield from self._record(part, window, words)
                if window.peek() == ",":
                    window.skip(",")
                    if window.peek() == "]":
                        raise PartUnreadable("is no JSON: a comma before the end of the array", window.line)
                elif window.peek() != "]":
                    raise PartUnreadable(window.what_is_wrong("between two elements of the array"), window.line)
            window.skip("]")
        if window.peek():
            hint = "; is it JSON Lines? then its name should end in .jsonl" if first == "{" else ""
            raise PartUnreadable(f"goes on after its {'array' if first == '[' else 'object'}{hint}", window.line)

    def _record(self, part: Part, window: _Window, words: list[str]) -> Iterator[Record]:
        """The next element, if it is not one to leave out."""
        line = window.line
        value, text = window.take()
        if self.objects:
            part.values = plain_values(value)
        data = text.encode("utf-8", "surrogatepass")
        if words:
            if self.nan == "refuse":
                why = f"holds {words[0]}, which is not JSON (--nan null or --nan keep takes it)"
                self.told.leave_out(part.name, line, why)
                words.clear()
                return
            if self.nan == "null":
                data = nulled(data)
            what = "null" if self.nan == "null" else "it is, which is not JSON"
            self.told.note_at(part.name, line, f"{words[0]} is written as {what} (--nan)")
            words.clear()
        key = None
        if self.key is not None:
            if not isinstance(value, dict) or self.key not in value:
                self.told.leave_out(part.name, line, NO_KEY)
                return
            key = field_identity(value[self.key])
        yield line, b"\n" + data, key

    @property
    def objects(self) -> bool:
        """Whether the parts are objects, so that a part is one record."""
        return "an object" in self._kinds

    def check_kinds(self) -> None:
        """Refuse arrays and objects together: what they would be as one, nobody can know."""
        if len(self._kinds) > 1:
            which = ", ".join(f"{clean(name)} is {kind}" for kind, name in self._kinds.items())
            raise Refused(f"mixed parts: {which}", hint="merge the arrays and the objects into a file each")


class _Window:
    """A part's text, of which only what is being read is held."""

    def __init__(self, part: Part, decode: object, chunk: int) -> None:
        self._decode = decode
        self._pieces = _pieces(part, chunk)
        self._text = ""
        self._at = 0
        self._ended = False
        self.line = 1

    def _more(self) -> bool:
        """Read on; False at the end of the file."""
        piece = next(self._pieces, None)
        if piece is None:
            self._ended = True
            return False
        # At least as much again as is held, so that a long element is not read over and over.
        pieces, held = [piece], len(piece)
        while held < len(self._text) - self._at and (piece := next(self._pieces, None)) is not None:
            pieces.append(piece)
            held += len(piece)
        self._text = "".join([self._text[self._at :], *pieces])
        self._at = 0
        return True

    def _advance(self, to: int) -> None:
        self.line += self._text.count("\n", self._at, to)
        self._at = to

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            match = _BLANK.match(self._text, self._at)
            assert match is not None
            self._advance(match.end())
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def skip(self, character: str) -> None:
        assert self.peek() == character
        self._advance(self._at + 1)

    def take(self) -> tuple[object, str]:
        """The next element and its text. PartUnreadable if it is wrong, or cut."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._text, self._at)  # type: ignore[operator]
                # One that ends where what is held ends is read again with more: a number may go on.
                if end < len(self._text) or not self._more():
                    text = self._text[self._at : end]
                    self._advance(end)
                    return value, text
            except json.JSONDecodeError as error:
                near_end = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - 12
                if not (near_end and not self._ended and self._more()):
                    self._advance(min(error.pos, len(self._text)))
                    raise PartUnreadable(self._wrong(error, near_end), self.line) from None
            except RecursionError:
                raise PartUnreadable("is nested too deeply to be read", self.line) from None
            except ValueError as error:
                raise PartUnreadable(f"is no JSON: {clean(error)}", self.line) from None

    def _wrong(self, error: json.JSONDecodeError, near_end: bool) -> str:
        if near_end and self._ended:
            return "is cut: the file ends inside this element"
        return f"is no JSON: {clean(error.msg)}"

    def what_is_wrong(self, where: str) -> str:
        return "is cut: the file ends inside the array" if not self.peek() else f"is no JSON {where}"


def _pieces(part: Part, chunk: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with open(part.path, "rb", buffering=0) as file:
        first = True
        while data := file.read(chunk):
            if first:
                data, first = data.removeprefix(codecs.BOM_UTF8), False
                if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                    raise PartUnreadable("is UTF-16; only UTF-8 is merged (iconv -f UTF-16 -t UTF-8)", 1)
            try:
                text = decoder.decode(data)
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                raise PartUnreadable("is not UTF-8", line) from None
            line += data.count(b"\n")
            yield text
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            raise PartUnreadable("is cut: the file ends inside a character", line) from None


def merge_objects(parts: Sequence[Part], out: Output, order: ItemOrder | None, options: Options, told: Told) -> Merged:
    """The documents as one, by the rules for dicts: what --sum asks for. Reads them whole."""
    value, merged = merge_whole(parts, _whole, NoArrays(), order, options.sums, told)
    if value is not None:
        text = json.dumps(value, ensure_ascii=False, indent=1)
        words: list[str] = []
        json.loads(text, parse_constant=words.append)
        data = text.encode("utf-8", "surrogatepass")
        if words and options.nan != "keep":
            if options.nan == "refuse":
                raise Refused(f"would hold {words[0]}, which is not JSON (--nan null or keep)", where=out.path)
            told.note(f"{words[0]} is written as null (--nan)")
            data = nulled(data)
        out.write(data + b"\n")
    return merged


def _whole(part: Part) -> object:
    try:
        return json.loads(Path(part.path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise PartUnreadable(f"is no JSON: {clean(error)}", getattr(error, "lineno", None)) from None
