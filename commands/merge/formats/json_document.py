"""JSON documents: arrays are joined element by element in their own text, objects become a list. Holds one part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..join.records import NO_KEY, Record, RecordFormat, field_identity, open_text
from ..join.whole_files import WholeFileFormat, plain_values
from ..parts.model import MergePart, MergeRefused, MergeReport, MergeTask, PartUnreadable, shown
from ..write.output import MergeOutput
from .jsonl import without_nan

_GAP = re.compile(r"[ \t\n\r,]*")


class JsonArrays(RecordFormat):
    """The elements of .json parts. The output is one array, an element in each line; with --sum it is one object."""

    prefix = b"["
    separator = b","
    suffix = b"\n]\n"

    def __init__(self, task: MergeTask) -> None:
        super().__init__(task)
        self._kinds: dict[str, str] = {}  # array or object -> the first part that is one

    def write(self, out: MergeOutput) -> int | None:
        if self.options.sum:
            return JsonObjects(self.task).write(out)
        records = super().write(out)
        if len(self._kinds) > 1:
            which = ", ".join(f"{shown(name)} is an {kind}" for kind, name in self._kinds.items())
            raise MergeRefused(f"mixed parts: {which}", hint="merge the arrays and the objects into a file each")
        return records

    def records(self, part: MergePart, report: MergeReport) -> Iterator[Record]:
        with open_text(part.path) as file:
            data = file.read()
        line, at, name, identity = 1, 0, self.options.key, b""
        for element in self._elements(part, data):
            begin = data.index(element, at)  # only blanks and a comma stand between two elements
            line, at = line + data.count(b"\n", at, begin), begin
            if name is not None or "object" in self._kinds:
                value = json.loads(element)
                part.values = plain_values(value)
                if name is not None and not (isinstance(value, dict) and name in value):
                    report.leave_out(part.name, line, NO_KEY)
                    continue
                identity = b"" if name is None else field_identity(value[name])
            if text := without_nan(element, self.task, report, part.name, line):
                yield line, b"\n" + text, identity, 1

    def _elements(self, part: MergePart, data: bytes) -> Iterator[bytes]:
        """Return the elements of an array, or the one object."""
        if not data:
            return iter(())
        document = read_json(data)
        if not isinstance(document, dict | list):
            raise PartUnreadable("is neither a JSON array nor an object", 1)
        self._kinds.setdefault("array" if isinstance(document, list) else "object", part.name)
        self.task.counts_items = "object" not in self._kinds
        if isinstance(document, dict):
            return iter([data.strip(b" \t\r\n")])
        return map(bytes, document)


def read_json(data: bytes) -> Any:
    """Return an object, or the texts of the elements of an array. PartUnreadable where it is neither."""
    try:
        text = data.decode()  # msgspec does not look at the encoding
        try:
            return msgspec.json.decode(data, type=list[msgspec.Raw])
        except msgspec.MsgspecError:  # NaN is in it, it is an object, or it is damaged
            document = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "; is it JSON Lines? then its name should end in .jsonl" if "Extra data" in str(error) else ""
        line = getattr(error, "lineno", 1)
        raise PartUnreadable(f"is no JSON, or is cut: {shown(error)}{hint}", line) from None
    return list(_elements_of(text)) if isinstance(document, list) else document


def _elements_of(text: str) -> Iterator[bytes]:
    decode, at = json.JSONDecoder().raw_decode, text.index("[") + 1
    while text[at := _GAP.match(text, at).end()] != "]":  # type: ignore[union-attr]  # it matches anything
        end = decode(text, at)[1]
        yield text[at:end].encode()
        at = end


class JsonObjects(WholeFileFormat):
    """The documents of .json parts as one, by the rules for dicts: --sum asks for that."""

    noun = "JSON"

    def read(self, part: MergePart) -> Any:
        return json.loads(Path(part.path).read_bytes())

    def save(self, merged: Any, out: MergeOutput) -> None:
        data = json.dumps(merged, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass")
        if not (text := without_nan(data, self.task, self.task.report, out.name, 1)):
            raise MergeRefused("would hold NaN, which is not JSON (--nan null writes null)", where=out.path)
        out.write(text + b"\n")
