"""The record of the last merge by a plan, beside the plan: what it made of which files, and what was wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from gpusched.common.files import hash_file, write_atomically

NAME = "merge_record.json"
PLAN = "shard_plan.json"

Stamp = tuple[int, int]  # size and time of the last change: other ones after a change


@dataclass(frozen=True, slots=True)
class MergedFile:
    """An output as the merge has left it. `summary` says for people what it is."""

    path: str
    summary: str
    sha256: str
    stamp: Stamp
    is_complete: bool

    def is_on_disk(self) -> bool:
        """Return True if the file is there, as the merge has left it."""
        stamp = file_stamp(self.path)
        if stamp is None or stamp[0] != self.stamp[0]:
            return False
        return stamp == self.stamp or hash_file(self.path) == self.sha256


@dataclass(frozen=True, slots=True)
class MergeRecord:
    """One run of a merge. `merge`: the merge of the plan that it was; `files`: all that the plan's patterns named."""

    merge: str
    at: float
    outputs: Sequence[MergedFile] = ()
    files: Mapping[str, Stamp] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)  # shard -> its file that lacks something; "": there is none
    warnings: Sequence[str] = ()
    errors: Sequence[str] = ()

    def is_complete(self) -> bool:
        """Return True if all outputs are complete and on disk. Their parts may be gone then."""
        return not self.errors and all(one.is_complete for one in self.outputs) and self.is_on_disk()

    def is_on_disk(self) -> bool:
        """Return True if something was made, and all of it is on disk as it was made."""
        return bool(self.outputs) and all(one.is_on_disk() for one in self.outputs)

    def messages(self) -> list[str]:
        """Return the warnings and errors."""
        return [*self.errors, *self.warnings]

    def lines(self) -> list[str]:
        """Return for people what was made and is on disk, and what is not any more."""
        gone = "was made, and is gone or has changed since"
        return [one.summary if one.is_on_disk() else f"{one.path} {gone}" for one in self.outputs]


def file_stamp(path: str) -> Stamp | None:
    """Return the stamp of a file; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def write_record(directory: str, record: MergeRecord) -> None:
    """Replace the record in this directory."""
    text = json.dumps(asdict(record), indent=1)
    write_atomically(f"{directory}/{NAME}", text.encode("utf-8", "backslashreplace") + b"\n", sync=True)


def read_record(directory: str) -> MergeRecord | None:
    """Read the record in this directory; None if there is none that can be read."""
    try:
        with open(f"{directory}/{NAME}", "rb") as file:
            values = json.load(file)
        values["outputs"] = [MergedFile(**{**one, "stamp": tuple(one["stamp"])}) for one in values["outputs"]]
        values["files"] = {path: tuple(stamp) for path, stamp in values["files"].items()}
        return MergeRecord(**values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
