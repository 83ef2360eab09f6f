"""The wish of a viewer: what to see, as the query of the address of the page, so that a link shows the same again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from gpusched.core.jobs.job_filter import ORDERS, parse_filter
from gpusched.operations.look.overview import Focus

FIRST_ROWS, MOST_ROWS = 100, 2000
_TEXT_LENGTH = 200
_PATH_LENGTH = 4096
_ID_DIGITS = 15


class PageQuery(NamedTuple):
    """A queue by its path (empty: the first one), which of its jobs, in which order, how many, and one in full."""

    queue: str = ""
    text: str = ""
    order: str = ""
    is_reversed: bool = False
    job: int | None = None
    rows: int = FIRST_ROWS

    @property
    def focus(self) -> Focus:
        return Focus(self.queue, parse_filter(self.text, self.order, is_reversed=self.is_reversed), self.job)

    def link(self, **changes: Any) -> str:
        """Return the reference to the page with these changes."""
        other = self._replace(**changes)
        fields = {
            "queue": other.queue,
            "text": other.text,
            "order": other.order,
            "reverse": "1" if other.is_reversed else "",
            "job": other.job,
            "rows": other.rows if other.rows != FIRST_ROWS else "",
        }
        return "?" + urlencode({name: value for name, value in fields.items() if value}, errors="replace")

    def sort_link(self, order: str) -> str:
        """Return the reference to the page sorted so; sorted so already, the other way round."""
        return self.link(order=order, is_reversed=order == self.order and not self.is_reversed)


def parse_query(fields: Mapping[str, str]) -> PageQuery:
    """Return the wish that these fields stand for. What makes no sense is as if it were not there."""

    def number(name: str) -> int | None:
        text = fields.get(name, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS else None

    order = fields.get("order", "")
    return PageQuery(
        queue=fields.get("queue", "")[:_PATH_LENGTH],
        text=fields.get("text", "")[:_TEXT_LENGTH],
        order=order if order in ORDERS else "",
        is_reversed=bool(fields.get("reverse")),
        job=number("job"),
        rows=min(MOST_ROWS, max(1, number("rows") or FIRST_ROWS)),
    )
