"""The jobs of many that a person wants to see, and their order. Reads words, and knows no job."""

from __future__ import annotations

from dataclasses import dataclass

from gpusched.core.jobs.addresses import parse_address
from gpusched.core.jobs.job import JobState

# "": what runs, what is next, what has ended.
ORDERS = ("", "id", "state", "prio", "tags", "started", "time", "command")


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Each of the texts is in the name, the command or the tags; one of the tags, and one of the states, if any."""

    texts: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    states: tuple[JobState, ...] = ()
    order: str = ""  # one of ORDERS
    is_reversed: bool = False


EVERY_JOB = JobFilter()


def parse_filter(words: str, order: str = "", *, is_reversed: bool = False) -> JobFilter:
    """Return the filter of words such as `train tag=sweep state=failed`; of a state, its beginning does."""
    texts, tags, states = [], [], []
    for word in words.split():
        key, value = parse_address(word).filter or ("", "")
        named = [state for state in JobState if key == "state" and state.value.startswith(value)]
        states += named
        tags += [value] if key == "tag" else []
        texts += [] if named or key == "tag" else [word]
    return JobFilter(tuple(texts), tuple(tags), tuple(states), order, is_reversed)
