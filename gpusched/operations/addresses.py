"""The jobs that words stand for in a queue, and the queue that the words name. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from gpusched.common.errors import GpuschedError
from gpusched.common.quantities import nearest
from gpusched.common.text import ranges
from gpusched.core.jobs.addresses import FORMS, JobAddress, parse_address, split_queues, split_words
from gpusched.core.model import JobState
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, job_table
from gpusched.operations import queues
from gpusched.operations.queues import Notify, ignore, open_store
from gpusched.views.words import count

SHOWN_SPANS = 6
STATES = {state.value: state for state in JobState}


def find_jobs(store: Store, words: Sequence[str], *, to_change: bool = False, notify: Notify = ignore) -> list[int]:
    """Return the ids of the jobs that these words stand for, each once.

    Each word adds jobs; of filters, those with different keys narrow each other. A name that is also a range or a
    filter is taken as the name, which `notify` hears of; jobs that are `to_change` are not chosen so. Raises
    GpuschedError for a word that stands for no job.
    """
    try:
        return _find_jobs(store, words, to_change=to_change, notify=notify)
    except GpuschedError as error:
        if to_change:
            error.hint = "; ".join(filter(None, (error.hint, "nothing was changed")))
        raise


def _find_jobs(store: Store, words: Sequence[str], *, to_change: bool, notify: Notify) -> list[int]:
    parts = [os.fsencode(part).decode("utf-8", "replace") for part in split_words(words) or words]
    names = job_table.ids_by_name(store, [part for part in parts if not part.isdecimal()])
    found: dict[int, None] = {}
    filters: list[tuple[str, str]] = []
    for address in map(parse_address, parts):
        if address.word in names:
            named = names[address.word]
            _refuse_doubt(store, address, named, to_change=to_change, notify=notify)
            found[named] = None
        elif address.span is not None:
            found |= dict.fromkeys(_in_span(store, address, address.span, notify))
        elif address.filter is not None:
            filters.append(address.filter)
        else:
            queue = address.word.rpartition("/")[0]
            hint = f"nor a queue {queue}: `gpusched status` lists the queues" if queue else FORMS
            raise _no_job(store, address, hint)
    return list(found | dict.fromkeys(_with(store, filters)))


def find_job(store: Store, word: str, *, notify: Notify = ignore) -> int:
    """Return the id of the one job that a word stands for. Raises GpuschedError for none, and for several."""
    ids = find_jobs(store, [word], notify=notify)
    if len(ids) != 1:
        raise GpuschedError(f"{word} names {len(ids)} jobs, but this takes a single one", hint="an id such as 12")
    return ids[0]


def _no_job(store: Store, address: JobAddress, hint: str) -> GpuschedError:
    """Return the error for a job that is not in this queue; its hint names it where it is in the default queue."""
    default = queue_dirs.find_standing(queue_dirs.DEFAULT_NAME)
    if default is not None and default.database != store.path:
        with suppress(GpuschedError), open_store(default) as other:
            first, last = address.span or (0, 0)
            if job_table.ids_between(other, first, last) or job_table.ids_by_name(other, [address.word]):
                hint = f"your own queue has it: {default.name}/{address.word}"
    word = address.word if address.span else repr(address.word)
    return GpuschedError(f"there is no job {word} in the queue {_label(store)}", hint=hint)


def _label(store: Store) -> str:
    directory = os.path.dirname(store.path)
    return queues.queue_label(QueueDir(directory, directory))


def _in_span(store: Store, address: JobAddress, span: tuple[int, int], notify: Notify) -> list[int]:
    first, last = span
    newest = job_table.last_id(store)
    if not 1 <= first <= last <= newest:
        hint = f"it has jobs 1 to {newest}; `gpusched status -v` lists them, -q names another queue"
        raise _no_job(store, address, hint)
    ids = job_table.ids_between(store, first, last)
    if not ids:
        which = f"job {address.word} was" if first == last else f"the jobs {address.word} were"
        raise GpuschedError(f"{which} cleaned away", hint="`gpusched status -v` lists the jobs that are left")
    if gone := last - first + 1 - len(ids):
        notify(f"{count(gone, 'job')} of {address.word} cleaned away: the others are meant")
    return ids


def _with(store: Store, filters: Sequence[tuple[str, str]]) -> list[int]:
    """Return the jobs that have one of the stated tags, if any, and are in one of the stated states, if any."""
    if not filters:
        return []
    states, tags = ([value for key, value in filters if key == wanted] for wanted in ("state", "tag"))
    for state in states:
        if state not in STATES:
            hint = f"did you mean {meant}?" if (meant := nearest(state, STATES)) else ", ".join(STATES)
            raise GpuschedError(f"there is no state {state!r}", hint=hint)
    ids = job_table.ids(store, [STATES[state] for state in states], tags)
    if not ids:
        said = " and ".join(f"{key}={value}" for key, value in filters)
        raise GpuschedError(f"there is no job with {said} in the queue {_label(store)}")
    return ids


def _refuse_doubt(store: Store, address: JobAddress, named: int, *, to_change: bool, notify: Notify) -> None:
    """Raise GpuschedError, or say how the word is taken, if a job's name means other jobs, too."""
    others: list[int] = []
    if address.span is not None:
        others = job_table.ids_between(store, *address.span)
    elif address.filter is not None and (address.filter[0] == "tag" or address.filter[1] in STATES):
        key, value = address.filter
        others = job_table.ids(store, [STATES[value]] if key == "state" else (), [value] if key == "tag" else ())
    if others and others != [named]:
        spans = ranges(others).split(", ")
        text = ",".join(spans[:SHOWN_SPANS]).replace("-", "..") + " …" * (len(spans) > SHOWN_SPANS)
        _take_name(address.word, f"job {named}", f"{count(len(others), 'job')} ({text})", to_change, notify)


def _take_name(word: str, named: str, other: str, to_change: bool, notify: Notify) -> None:
    if to_change:
        hint = "state the ids of those that are meant"
        raise GpuschedError(f"{word} is the name of {named}, and stands for {other}, too", hint=hint)
    notify(f"{word} is taken as the name of {named}, though it stands for {other}, too")


# ---- QUEUE/ID --------------------------------------------------------------------------------------


def find_queue_of(
    words: Iterable[str],
    name: str | None = None,
    *,
    state_dir: str | None = None,
    to_change: bool = False,
    for_script: bool = False,
    notify: Notify = ignore,
) -> tuple[QueueDir, tuple[str, ...]]:
    """Return the queue of these jobs, and the words without it: that of `QUEUE/ID`, or of `name`, or the usual one.

    Raises GpuschedError for jobs of several queues.
    """

    def find(queue: str | None) -> QueueDir:
        return queues.find_queue(queue, state_dir=state_dir, to_change=to_change, for_script=for_script, notify=notify)

    words = tuple(words)
    parts = list(split_queues(words)) if any("/" in word for word in words) else []
    stated = {part.whole: part for part in parts if part.queue and queues.is_known(part.queue, state_dir)}
    for whole, job_id in _names_in(name, state_dir, [whole for whole in stated if "/" in whole]).items():
        part = stated[whole]
        _take_name(whole, f"job {job_id}", f"{part.rest} of the queue {part.queue}", to_change, notify)
        del stated[whole]
    if not stated:
        return find(name), words
    found = {queue.path: queue for queue in [find(queue) for queue in dict.fromkeys(p.queue for p in stated.values())]}
    if name is not None or len(stated) < len(parts):
        usual = find(name)
        found[usual.path] = usual
    if len(found) > 1:
        hint = "use one command for each queue"
        raise GpuschedError(f"these are jobs of several queues: {', '.join(map(queues.shown_path, found))}", hint=hint)
    return next(iter(found.values())), tuple(stated[p.whole].rest if p.whole in stated else p.whole for p in parts)


def _names_in(name: str | None, state_dir: str | None, words: Sequence[str]) -> dict[str, int]:
    """Return the id of each of these words that is the name of a job in the queue that is meant without them."""
    if not words:
        return {}
    try:
        with open_store(queues.find_queue(name, state_dir=state_dir)) as store:
            return job_table.ids_by_name(store, words)
    except GpuschedError:  # there is none, or it cannot be read
        return {}
