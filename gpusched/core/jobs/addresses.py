"""Words that stand for jobs: ids, ranges, names, filters, QUEUE/ID. Reads the words, and knows no job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

FORMS = "12, 3-7, 3..7, 1,5, a job's name, tag=TAG, state=STATE, QUEUE/12"
FILTERS = ("tag", "state")
_SPAN = re.compile(r"([0-9]{1,18})(?:(?:-|\.\.)([0-9]{1,18}))?")


@dataclass(frozen=True, slots=True)
class JobAddress:
    """A word for jobs, apart from a job of this name. `filter`: one of FILTERS and its value, if it is such a word."""

    word: str
    span: tuple[int, int] | None = None  # first and last id
    filter: tuple[str, str] | None = None


def parse_address(word: str) -> JobAddress:
    """Return what a word says. One that is neither an id, a range nor a filter can only be a name."""
    if match := _SPAN.fullmatch(word):
        return JobAddress(word, span=(int(match[1]), int(match[2] or match[1])))
    key, equals, value = word.partition("=")
    return JobAddress(word, filter=(key, value) if equals and key in FILTERS else None)


def split_words(words: Iterable[str]) -> list[str]:
    """Return the parts that commas separate, each once."""
    return list(dict.fromkeys(part for word in words for part in word.split(",") if part))


@dataclass(frozen=True, slots=True)
class QueuedWord:
    """A word behind the queue that it may state: `night/3`, and the 4 in `night/3,4`. `whole` is the word as typed."""

    whole: str
    queue: str = ""
    rest: str = ""


def split_queues(words: Iterable[str]) -> Iterator[QueuedWord]:
    """Yield the parts that commas separate, each with the queue that it may be of."""
    for word in words:
        queue = ""
        for part in filter(None, word.split(",")):
            stated, _, rest = part.rpartition("/")
            queue = stated or queue
            yield QueuedWord(part, queue if rest else "", rest)
