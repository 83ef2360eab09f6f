"""Tells how far an analysis is, in the file that GPUSCHED_PROGRESS names. Without that it tells nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping

_EVERY_S = 0.2


class Progress:
    """Layers done of all, to be called for each; the file is replaced at most five times a second, and at the end."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._path = environment.get("GPUSCHED_PROGRESS", "")
        self._told_at = float("-inf")

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._path or (done < total and now - self._told_at < _EVERY_S):
            return
        self._told_at = now
        temporary = f"{self._path}.{os.getpid()}"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({"done": done, "total": total, "unit": "layers"}, file)
            os.replace(temporary, self._path)
        except OSError:  # whoever wants to know gets to know less; the analysis goes on
            self._path = ""
