"""JSON documents: arrays are joined element by element in their own text, objects become a list. Holds one part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..join.line_blocks import bom_bytes
from ..join.records import NO_KEY, Record, RecordFormat, field_identity
from ..join.whole_files import WholeFileFormat, plain_values
from ..parts.model import Joined, MergePart, MergeTask
from ..parts.report import MergeRefused, MergeReport, PartUnreadable, shown
from ..write.output import MergeOutput
from .jsonl import is_cut, nulled

_BEFORE = re.compile(r"[ \t\n\r]*\[?[ \t\n\r]*")
_AFTER = re.compile(r"[ \t\n\r]*(?:(\])[ \t\n\r]*|,[ \t\n\r]*(?!\]))")  # the end, or a comma before another element


class JsonArrays(RecordFormat):
    """The elements of .json parts. The output is one array, an element in each line; with --sum it is one object."""

    prefix = b"["
    separator = b","
    suffix = b"\n]\n"

    def __init__(self, task: MergeTask) -> None:
        super().__init__(task)
        self._kinds: dict[str, str] = {}  # array or object -> the first part that is one

    def write(self, out: MergeOutput) -> Joined:
        if self.options.sum:
            return JsonObjects(self.task).write(out)
        joined = super().write(out)
        if len(self._kinds) > 1:
            which = ", ".join(f"{shown(name)} is {kind}" for kind, name in self._kinds.items())
            raise MergeRefused(f"mixed parts: {which}", hint="merge the arrays and the objects into a file each")
        return Joined(joined.records, per_item="an object" not in self._kinds)

    def records(self, part: MergePart, report: MergeReport) -> Iterator[Record]:
        data = Path(part.path).read_bytes()
        data = data[bom_bytes(data[:3]) :]
        line, at, name = 1, 0, self.options.key
        for text, word in self._elements(part, data):
            begin = data.index(text, at)  # only blanks and a comma stand between two elements
            line, at, key = line + data.count(b"\n", at, begin), begin, b""
            if name is not None or "an object" in self._kinds:
                value = json.loads(text)
                part.values = plain_values(value)
                if name is not None and not (isinstance(value, dict) and name in value):
                    report.leave_out(part.name, line, NO_KEY)
                    continue
                key = b"" if name is None else field_identity(value[name])
            if word and self.options.nan == "refuse":
                report.leave_out(part.name, line, f"holds {word}, which is not JSON (--nan null writes null)")
                continue
            if word:
                report.note_at(part.name, line, f"{word} is written as null (--nan)")
            yield line, b"\n" + (nulled(text) if word else text), key

    def _elements(self, part: MergePart, data: bytes) -> Iterator[tuple[bytes, str]]:
        """Yield the text of each element, and a word in it that JSON does not know."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PartUnreadable("is not UTF-8", 1 + data.count(b"\n", 0, error.start)) from None
        first = text.lstrip(" \t\n\r")[:1]
        if first and first not in "[{":
            raise PartUnreadable("is neither a JSON array nor an object", 1)
        if not first:
            self.report.note(f"{shown(part.name)} is empty: it is skipped")
            return
        self._kinds.setdefault("an array" if first == "[" else "an object", part.name)
        try:
            raws = msgspec.json.decode(data, type=list[msgspec.Raw])
        except (msgspec.MsgspecError, RecursionError):  # NaN is in it, it is an object, or it is damaged
            yield from _read_by_python(text, is_array=first == "[")
        else:
            yield from ((bytes(raw), "") for raw in raws)


def _read_by_python(text: str, *, is_array: bool) -> Iterator[tuple[bytes, str]]:
    words: list[str] = []
    decode = json.JSONDecoder(parse_constant=words.append).raw_decode
    match = _BEFORE.match(text)
    at, after = match.end() if match and is_array else text.index("{"), None
    if is_array and text[at : at + 1] == "]":
        after, at = _AFTER.match(text, at), at + 1
    while not (after and after[1]):
        words.clear()
        try:
            end = decode(text, at)[1]
        except RecursionError:
            raise _wrong("is nested too deeply to be read", text, at) from None
        except json.JSONDecodeError as error:
            why = "is cut: the file ends inside this element" if is_cut(error) else f"is no JSON: {error.msg}"
            raise _wrong(why, text, error.pos) from None
        yield text[at:end].encode("utf-8", "surrogatepass"), "".join(words[:1])
        after = _AFTER.match(text, end) if is_array else None
        if not is_array:
            break
        if after is None:
            raise _wrong(
                "is no JSON after this element" if text[end:].strip() else "is cut inside the array", text, end
            )
        at = after.end()
    end = after.end() if after else end
    if text[end:].strip(" \t\n\r"):
        hint = "" if is_array else "; is it JSON Lines? then its name should end in .jsonl"
        raise _wrong(f"goes on after its {'array' if is_array else 'object'}{hint}", text, end)


def _wrong(why: str, text: str, at: int) -> PartUnreadable:
    return PartUnreadable(why, 1 + text.count("\n", 0, at))


class JsonObjects(WholeFileFormat):
    """The documents of .json parts as one, by the rules for dicts: --sum asks for that."""

    def read(self, part: MergePart) -> Any:
        try:
            return json.loads(Path(part.path).read_bytes())
        except (ValueError, RecursionError) as error:
            raise PartUnreadable(f"is no JSON: {shown(error)}", getattr(error, "lineno", None)) from None

    def save(self, merged: Any, out: MergeOutput) -> None:
        text = json.dumps(merged if isinstance(merged, list) else dict(merged), ensure_ascii=False, indent=1)
        data = text.encode("utf-8", "surrogatepass")
        if nulled(data) != data and self.task.options.nan == "refuse":
            raise MergeRefused("would hold NaN, which is not JSON (--nan null writes null)", where=out.path)
        if nulled(data) != data:
            self.task.report.note("NaN is written as null (--nan)")
        out.write(nulled(data) + b"\n")
