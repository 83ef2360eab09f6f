"""The results in parts, written while the pool works: each complete when it has its name. The store is the truth."""

from __future__ import annotations

import os

from gpusched.common.files import write_atomically
from gpusched.host.store.pool.items import ItemStore
from gpusched.pool.results import line_of


class Parts:
    """The files `part-00001.jsonl` … in one directory."""

    def __init__(self, store: ItemStore, directory: str, every: int) -> None:
        """Write the parts anew that the store knows and that are not there: a coordinator was killed before that."""
        self._store, self._directory, self._every = store, directory, every
        os.makedirs(directory, exist_ok=True)
        self._number = store.newest_part()
        self._waiting = store.count_unwritten()
        for number in range(1, self._number + 1):
            if not os.path.exists(self.path(number)):
                self._write(number)

    def path(self, number: int) -> str:
        return f"{self._directory}/part-{number:05}.jsonl"

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
        write_atomically(self.path(number), b"".join(lines), mode=0o644)
