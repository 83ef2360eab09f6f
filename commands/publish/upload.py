"""Copies of files at a URL, by fsspec: each verified, and noted in a record, by which a later start goes on."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import fsspec

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')  # the ETag of an object that was sent in one piece


class UploadDamaged(OSError):
    """A copy is not what was sent."""


class Destination:
    """A URL. `record`: the file of what is there already, for this URL and others."""

    def __init__(self, url: str, record: str) -> None:
        self._files, self._root = fsspec.core.url_to_fs(url)
        if hasattr(self._files, "auto_mkdir"):  # what has directories makes them
            self._files.auto_mkdir = True
        self._url = hashlib.sha256(url.encode()).hexdigest()[:16]  # it may hold a password
        self._record, self._lock = record, threading.Lock()
        self.uploaded_bytes, self.busy_s = 0, 0.0  # of this process; seconds in which something was sent
        self._sending, self._since_s = 0, 0.0
        self._there: set[tuple[str, str, int, int]] = set()
        with suppress(FileNotFoundError), open(record, "rb") as file:
            for line in file:
                with suppress(ValueError):  # the end of a process that was killed
                    self._there.add(tuple(json.loads(line)))

    def put(self, path: str, name: str) -> None:
        """Upload a file unless it is there, and verify the copy. Raises what the library raises, or UploadDamaged."""
        status = os.stat(path)
        row = (self._url, name, status.st_size, status.st_mtime_ns)
        if row in self._there:
            return
        target = f"{self._root}/{name}"
        with self._timed():
            self._files.put_file(path, target)
        self._verify(path, target, row[2])
        with self._lock, open(self._record, "ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            self._there.add(row)
            self.uploaded_bytes += row[2]

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the time of the block, once where several threads are in it."""
        with self._lock:
            self._since_s = self._since_s if self._sending else time.monotonic()
            self._sending += 1
        try:
            yield
        finally:
            with self._lock:
                self._sending -= 1
                self.busy_s += 0.0 if self._sending else time.monotonic() - self._since_s

    def _verify(self, path: str, target: str, size: int) -> None:
        self._files.invalidate_cache()
        info = self._files.info(target)
        if info["size"] != size:
            raise UploadDamaged(f"the copy has {info['size']} bytes and not {size}")
        if tag := _MD5.fullmatch(str(info.get("ETag", ""))):
            with open(path, "rb") as file:
                data = file.read()
            # where the place encrypts, the tag is no digest of the data
            if hashlib.md5(data).hexdigest() != tag[1] and self._files.cat_file(target) != data:
                raise UploadDamaged("the copy has other bytes")
