"""The items to give out next: read page by page, so that memory stays flat, and those to try again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gpusched.host.store.pool.items import OpenItem
from gpusched.pool.coordinator.verdicts import NextTry

PAGE = 1000
ReadPage = Callable[[tuple[float, int], int], list[OpenItem]]


class Backlog:
    """Items without an outcome that no worker has. One whose worker died before is tried alone, also in a new run."""

    def __init__(self, read_page: ReadPage) -> None:
        self._read_page = read_page
        self._page: deque[OpenItem] = deque()
        self._last = (float("-inf"), 0)
        self._is_read = False  # to the end
        self._elsewhere: set[int] = set()  # ids that a worker has, or that are settled, though a page may bring them
        self._queues: dict[NextTry, deque[OpenItem]] = {place: deque() for place in NextTry}

    def put_back(self, item: OpenItem, place: NextTry) -> None:
        """Have an item tried again."""
        self._queues[place].append(item)

    def postpone(self, item: OpenItem) -> None:
        """Have other items tried before this one, at which a worker has ended that had never worked."""
        self._page.append(item)

    def exclude(self, item: int) -> None:
        """Leave out an item that a worker had before this coordinator was there."""
        self._elsewhere.add(item)

    def take(self, place: NextTry = NextTry.ANYWHERE) -> OpenItem | None:
        """Return the next item for this place; None if there is none."""
        if self._queues[place]:
            return self._queues[place].popleft()
        while place is NextTry.ANYWHERE and self._fill():
            item = self._page.popleft()
            if item.id in self._elsewhere:
                self._elsewhere.discard(item.id)
            elif item.deaths:
                self.put_back(item, NextTry.ALONE)
            else:
                return item
        return None

    def has(self, place: NextTry) -> bool:
        """Return True if there may be an item for this place."""
        return bool(self._queues[place]) or (place is NextTry.ANYWHERE and self._fill())

    @property
    def is_empty(self) -> bool:
        return not any(map(self.has, NextTry))

    def _fill(self) -> bool:
        """Read the next page if this one is used up. Return True if an item is in it."""
        if not self._page and not self._is_read:
            self._page.extend(self._read_page(self._last, PAGE))
            if self._page:
                self._last = self._page[-1].rank, self._page[-1].id
            else:
                self._is_read = True
        return bool(self._page)
