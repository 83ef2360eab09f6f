"""The progress of a pool in numbers: for its job, for a file of JSON lines, and for whoever else wants them."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from gpusched.common.progress_file import ProgressFile
from gpusched.pool.coordinator.ledger import Ledger
from gpusched.pool.coordinator.peers import Peer
from gpusched.pool.coordinator.rates import RateWindows, time_left
from gpusched.pool.messages import CPU
from gpusched.views.words import about, count, rate

FILE = "progress.jsonl"
_STEP_S = 1.0
_LINE_S = 10.0


class PoolProgress:
    """The progress of one run of a coordinator. `publish` takes the numbers, and returns those of the upload."""

    def __init__(self, path: str, done: int, publish: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """`path`: of the file of JSON lines. `done`: the items that have an outcome at the beginning."""
        self._path, self._done, self._publish = path, done, publish
        self._report = ProgressFile("items")
        self._windows = RateWindows()
        self._by_device: defaultdict[str, RateWindows] = defaultdict(RateWindows)
        self._seen: dict[Peer, int] = {}
        self._again_s = self._line_s = 0.0

    def __call__(self, ledger: Ledger, peers: Iterable[Peer] = (), *, is_end: bool = False) -> None:
        """Report it, at most once a second."""
        now = time.monotonic()
        if now < self._again_s and not is_end:
            return
        self._again_s = now + _STEP_S
        numbers = self._numbers(ledger, [peer for peer in peers if peer.device], now)
        numbers["upload"] = dict(self._publish(numbers))
        self._report(numbers["done"], numbers["total"], sentence(numbers))
        if now >= self._line_s or is_end:
            self._line_s = now + _LINE_S
            with suppress(OSError), open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(numbers) + "\n")

    def _numbers(self, ledger: Ledger, peers: list[Peer], now: float) -> dict[str, Any]:
        done = {peer.device: 0 for peer in peers}
        for peer in peers:
            done[peer.device] += peer.done - self._seen.get(peer, 0)
        self._seen = {peer: peer.done for peer in peers}
        new, self._done = ledger.total - ledger.left - self._done, ledger.total - ledger.left
        if new or ledger.left:  # not while the rest is uploaded
            self._windows.note(new, now)
        ready = [peer.device for peer in peers if peer.is_ready]
        devices = {}
        for device in sorted(done):
            self._by_device[device].note(done[device], now)
            per_s = round(self._by_device[device].per_s, 3)
            devices[device] = {"workers": ready.count(device), "items_per_s": per_s}
        return {
            "at": round(time.time(), 1),
            "done": self._done,
            "total": ledger.total,
            "errors": ledger.errors,
            "out_of_memory": ledger.out_of_memory,
            "items_per_s": round(self._windows.per_s, 3),
            **time_left(ledger.left, self._windows.rates),
            "workers": len(ready),
            "devices": devices,
        }


def sentence(numbers: Mapping[str, Any]) -> str:
    """Return the numbers in words, as far as they say something."""
    parts = [rate(numbers["items_per_s"])] if numbers["items_per_s"] else []
    if numbers["left_s"] and (low := numbers["left_low_s"]) and (high := numbers["left_high_s"]):
        parts.append(f"{about(numbers['left_s'])} left ({about(low)[1:]} to {about(high)[1:]})")
    elif numbers["left_s"]:
        parts.append(f"{about(numbers['left_s'])} left")
    gpus = len(numbers["devices"].keys() - {CPU})
    parts.append(count(numbers["workers"], "worker") + (f" on {count(gpus, 'GPU')}" if gpus else ""))
    parts += [f"{numbers[key]} {words}" for key, words in _WORDS.items() if numbers[key]]
    if numbers["upload"]:
        parts.append(f"upload {upload_text(numbers['upload'])}")
    return ", ".join(parts)


_WORDS = {"errors": "ended in an error", "out_of_memory": "times out of memory"}


def upload_text(upload: Mapping[str, Any]) -> str:
    """Return such as `120/512 parts, 3.1 GB, 84 MB/s, 0 failed`."""
    size, speed = (_decimal(upload[name]) for name in ("bytes", "bytes_per_s"))
    return f"{upload['uploaded']}/{upload['parts']} parts, {size}, {speed}/s, {upload['failed']} failed"


def _decimal(size: float) -> str:
    """Return a size as networks count it: 3.1 GB."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} GB"
