"""The results in parts, written while the pool works: each complete when it has its name. The store is the truth."""

from __future__ import annotations

import os

from gpusched.common.files import write_atomically
from gpusched.host.store.pool.items import ItemStore
from gpusched.pool.options import PoolOptions
from gpusched.pool.publication import FORMATS, JSON_LINES
from gpusched.pool.results import line_of


class Parts:
    """The files `part-00001.jsonl` … in one directory. The stage `commands/publish` may put others in their place."""

    def __init__(self, store: ItemStore, options: PoolOptions) -> None:
        """Write the parts anew that the store knows and that are not there: a coordinator was killed before that."""
        self._store, self._directory, self._every = store, options.parts_dir, options.checkpoint_every
        suffixes = (JSON_LINES, FORMATS[options.sink].suffix)
        os.makedirs(self._directory, exist_ok=True)
        self._number = store.newest_part()
        self._waiting = store.count_unwritten()
        for number in range(1, self._number + 1):
            if not any(os.path.exists(self._path(number, suffix)) for suffix in suffixes):
                self._write(number)

    def _path(self, number: int, suffix: str = JSON_LINES) -> str:
        return f"{self._directory}/part-{number:05}.{suffix}"

    def add(self, results: int, *, is_end: bool = False) -> None:
        """Take note of more results in the store, and write the parts that are complete; at the end the rest, too."""
        self._waiting += results
        while self._waiting >= self._every or (is_end and self._waiting > 0):
            self._waiting -= self._every
            self._number += 1
            self._store.assign_part(self._number, self._every)
            self._write(self._number)

    def _write(self, number: int) -> None:
        lines = (line_of(row) + b"\n" for row in self._store.part(number))
        write_atomically(self._path(number), b"".join(lines), mode=0o644)
