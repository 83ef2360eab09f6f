"""The file with the samples of a queue: one line for each stretch of time, appended, and rewritten when it is too long.

A dispatcher may be killed in the middle of a line: lines that cannot be read are passed over. Decides nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import astuple
from typing import Any

from gpusched.common.files import read_regular, write_atomically
from gpusched.core.samples import GpuStretch, Stretch, thin

LARGEST_BYTES = 2 << 20
FINEST, COARSEST = 4096, 2  # an age, divided by this, is the length of a stretch


class SampleFile:
    """The file to append to. Raises OSError where a disk is full."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._begin = b"\n"  # ends what a killed dispatcher may have left half written

    def append(self, stretch: Stretch) -> None:
        data = self._begin + _encode(stretch)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(self.path, flags, 0o600), "ab", buffering=0) as file:
            file.write(data)
            size = file.tell()
        self._begin = b""
        if size > LARGEST_BYTES - 2 * len(data):
            self._shorten(stretch.ended_at)

    def _shorten(self, now: float) -> None:
        """Merge stretches, the old ones most, until they fit; leave out the oldest ones where even that is too much."""
        stretches, fineness = read(self.path), FINEST
        wanted = len(stretches) // 2
        while len(stretches) > wanted and fineness > COARSEST:
            fineness //= 2
            stretches = thin(stretches, now, fineness)
        lines = [_encode(stretch) for stretch in stretches]
        while sum(map(len, lines)) > LARGEST_BYTES * 3 // 4 and len(lines) > 1:
            del lines[: len(lines) // 4 + 1]
        write_atomically(self.path, b"".join(lines), temporary=f"{self.path}.tmp")


def read(path: str) -> list[Stretch]:
    """Return the stretches in order; empty where there is no file."""
    try:
        data = read_regular(path, 2 * LARGEST_BYTES)
    except OSError:
        return []
    return sorted(_decode(data.splitlines()), key=lambda stretch: stretch.ended_at)


def _encode(stretch: Stretch) -> bytes:
    return json.dumps(_rounded(astuple(stretch)), separators=(",", ":")).encode() + b"\n"


def _rounded(value: Any) -> Any:
    """Return a value with short numbers: a hundredth of a second, or of a GPU, is enough."""
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def _decode(lines: Iterable[bytes]) -> list[Stretch]:
    stretches = []
    for line in lines:
        try:
            began_at, ended_at, seconds, states, waits, rows = json.loads(line)
            gpus = {uuid: GpuStretch(*row) for uuid, row in rows.items()}
            stretches.append(Stretch(began_at, ended_at, seconds, states, waits, gpus))
        except (ValueError, TypeError, AttributeError, RecursionError):
            continue  # half a line, or one of another version
    return stretches
