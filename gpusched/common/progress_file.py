"""Report the progress of a stage in the file that GPUSCHED_PROGRESS names."""

from __future__ import annotations

import json
import os
import time

from gpusched.common.files import write_atomically

_EVERY_S = 0.2


class ProgressFile:
    """The progress of one job. Without the variable, and once the file cannot be written, nothing is reported."""

    def __init__(self, unit: str) -> None:
        """`unit`: the plural of what is counted, such as "layers"."""
        self._path = os.environ.get("GPUSCHED_PROGRESS", "")
        self._fields: dict[str, object] = {"unit": unit}
        self._written_at = float("-inf")

    def __call__(self, done: int, total: int, message: str = "") -> None:
        """Report that `done` of `total` are done, at most five times a second, and always at the end."""
        if done >= total or time.monotonic() - self._written_at >= _EVERY_S:
            self.report(done=done, total=total, **({"message": message} if message else {}))

    def report(self, **fields: object) -> None:
        """Report these fields beside those of before: `ready`, `message`, `memory_bytes` (on each GPU of the job)."""
        self._fields |= fields
        self._written_at = time.monotonic()
        if self._path:
            try:
                write_atomically(self._path, json.dumps(self._fields).encode())
            except OSError:
                self._path = ""
