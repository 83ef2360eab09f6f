"""The parts of a pool on their way: each into its format, then to its URL, again and again until it is there."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from glob import escape, glob
from typing import Any

from gpusched.commands.publish.formats import convert
from gpusched.commands.publish.upload import Destination

from gpusched.common.text import clean, mask_secrets
from gpusched.pool.publication import JSON_LINES, Publication, paths_of

STEP_S = 0.5
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0  # between two tries of a part
LAST_TRIES = 4  # of each part, once no more come
AT_ONCE = 4
RECORD = "uploaded.jsonl"  # beside the parts


class PartsPublisher:
    """The parts in a directory, more and more until `finish`. What fails is tried again, later and later."""

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self._destination: Destination | None = None
        self._opening = threading.Lock()
        self._parts: set[str] = set()  # paths without their suffix
        self._done: set[str] = set()
        self._failures: dict[str, tuple[int, float]] = {}  # how often, and when the next try is due
        self._error = ""
        self._is_complete = threading.Event()

    def finish(self) -> None:
        """Take note that no more parts come. Each that failed gets its last tries."""
        self._is_complete.set()

    def run(self) -> None:
        """Work until every part is where it belongs, or has had its last tries."""
        has_last_tries = False
        with ThreadPoolExecutor(AT_ONCE) as pool:
            while True:
                if self._is_complete.is_set() and not has_last_tries:
                    has_last_tries = True
                    self._failures.clear()
                names = glob(f"{escape(self._publication.directory)}/part-*.{JSON_LINES}")
                names += glob(f"{escape(self._publication.directory)}/part-*.{self._publication.suffix}")
                self._parts = {os.path.splitext(name)[0] for name in names}
                begin = time.monotonic()
                left = sorted(self._parts - self._done)
                list(pool.map(self._try, [part for part in left if self._failures.get(part, (0, 0.0))[1] <= begin]))
                left = sorted(self._parts - self._done)
                if has_last_tries and all(self._failures[part][0] >= LAST_TRIES for part in left):
                    return
                time.sleep(STEP_S) if has_last_tries else self._is_complete.wait(STEP_S)

    @property
    def status(self) -> dict[str, Any]:
        """The state of the upload in numbers; `error` is the newest one."""
        there = self._destination
        size, busy_s = (there.uploaded_bytes, there.busy_s) if there is not None else (0, 0.0)
        return {
            "uploaded": len(self._done & self._parts),
            "parts": len(self._parts),
            "bytes": size,
            "bytes_per_s": round(size / busy_s) if busy_s else 0,
            "failed": len(self._failures),
            "error": self._error,
        }

    def _try(self, part: str) -> None:
        try:
            self._publish(part)
        except Exception as error:
            tries = self._failures.get(part, (0, 0.0))[0]
            due = time.monotonic() + min(FIRST_DELAY_S * 2**tries, LONGEST_DELAY_S)
            self._failures[part] = tries + 1, due
            self._error = clean(mask_secrets(f"{type(error).__name__}: {error}"))[:300]
            print(f"{os.path.basename(part)}: {self._error}", file=sys.stderr, flush=True)
        else:
            self._done.add(part)
            self._failures.pop(part, None)

    def _publish(self, part: str) -> None:
        order = self._publication
        lines, path = f"{part}.{JSON_LINES}", f"{part}.{order.suffix}"
        if path != lines and os.path.exists(lines):
            convert(lines, path)
            os.unlink(lines)
        if order.url:
            with self._opening:
                self._destination = self._destination or Destination(order.url, f"{order.directory}/{RECORD}")
            if order.sink == "files":  # before the part that names them
                with open(path, "rb") as file:
                    names = [name for line in file for name in paths_of(json.loads(line)["result"])]
                for name in names:
                    full = os.path.join(order.output, name)
                    self._destination.put(full, os.path.relpath(full, order.output))
            self._destination.put(path, os.path.basename(path))
