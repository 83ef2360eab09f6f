"""What a command line is about: the queue that -q names, the jobs that its words name. Changes nothing."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpusched.cli.options import load
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError

if TYPE_CHECKING:
    from gpusched.config.settings import Settings
    from gpusched.host.gpus.claims import Claims
    from gpusched.host.queue.queue_dir import QueueDir
    from gpusched.host.store import Store

SHOWN_QUEUES = 8

queue_option = click.option(
    "-q",
    "--queue",
    metavar="PATH|STEM",
    help="Name the queue by its directory or its stem.  [default: the one of this directory]",
)


def now() -> float:
    return time.time()


# ---- which queue -----------------------------------------------------------------------------------


def find(name: str | None, *, to_change: bool = False) -> QueueDir:
    """The queue that is meant; which one is said where -q does not. Raises GpuschedError where there is none.

    What is `to_change` is never taken because it is the newest of several of other directories: it has to be named.
    """
    from gpusched.host.queue import queue_dir

    state_dir = load().settings.state_dir
    known = queue_dir.known(state_dir)
    if name:
        return _named(name, known, state_dir, to_change=to_change)
    if not known:
        raise GpuschedError(
            "there is no queue yet",
            hint="start one with `gpusched run FILE`, or name its directory with -q",
            exit_code=EXIT_CANNOT_WORK,
        )
    return _unnamed(known, to_change=to_change)


def _named(name: str, known: Sequence[QueueDir], state_dir: str | None, *, to_change: bool) -> QueueDir:
    found = _bearers(name, known, state_dir)
    if not found:
        names = ", ".join(queue_name(queue, known) for queue in known[:SHOWN_QUEUES])
        hint = f"known here: {names}" if names else "start one with `gpusched run FILE`"
        raise GpuschedError(f"there is no queue {name!r}", where="-q", hint=hint)
    place, others = found[0], [_short(queue.path) for queue in found[1:]]
    if others and to_change:
        where = "several of them are" if _is_here(place) else "none of them is"
        listed = "".join(f"\n    {path}" for path in [_short(place.path), *others])
        raise GpuschedError(
            f"{len(found)} queues bear the name {name!r}, and {where} of this directory",
            where="-q",
            hint=f"name one by its path:{listed}",
        )
    if others:
        rest = ", ".join(others[:SHOWN_QUEUES])
        _say(place.path, f"the newest of {len(found)} named {name}; by path -q names another: {rest}")
    elif os.sep not in name and not _is_here(place):
        _say(place.path, "of another directory")
    return place


def _unnamed(known: Sequence[QueueDir], *, to_change: bool) -> QueueDir:
    """The one of this directory that is dispatched, else its newest; without any, the one that is dispatched."""
    own = [queue for queue in known if _is_here(queue)]
    among = own or known
    live = [queue for queue in among if queue.dispatcher() is not None]
    if to_change and len(live) > 1:
        names = ", ".join(queue_name(queue, known) for queue in live)
        raise GpuschedError(f"{len(live)} queues are being dispatched: {names}", hint="name one of them with -q")
    if to_change and not own and not live:
        names = ", ".join(queue_name(queue, known) for queue in known[:SHOWN_QUEUES])
        what = "no queue is of this directory, and none is being dispatched"
        raise GpuschedError(what, hint=f"name one with -q: {names}")
    place = (live or among)[0]
    if len(known) > 1 or not own:
        here = " of this directory" if len(own) not in (0, len(known)) else ""
        if live:
            which = f"the {'one' if len(live) == 1 else 'newest'}{here} that is dispatched"
        else:
            which = f"the {'newest' if len(among) > 1 else 'only one'}{here}"
        _say(queue_name(place, known) if own else place.path, f"{which}; -q names another")
    return place


def _say(name: str, which: str) -> None:
    from gpusched.common.text import clean

    click.echo(clean(f"gpusched: queue {name}, {which}"), err=True)


def _bearers(word: str, known: Sequence[QueueDir], state_dir: str | None = None) -> list[QueueDir]:
    """The queues that a word after -q may mean, newest first; one alone where there is no doubt.

    That is ./gpusched-runs/WORD, else the directory WORD, else those of this directory that bear the name, else others.
    """
    from gpusched.host.queue import queue_dir

    paths = [] if os.sep in word else [f"{queue_dir.DEFAULT_PARENT}/{word}"]
    for path in [*paths, word]:
        place = queue_dir.locate(os.path.join(here(), path), state_dir)
        if place.exists():
            return [place]
    found = [queue for queue in known if word in (queue.name, queue.path)]
    return [queue for queue in found if _is_here(queue)] or found


def _is_here(queue: QueueDir) -> bool:
    """Whether it is of the working directory: below it, but not in the gpusched-runs of another directory."""
    from gpusched.host.queue.queue_dir import DEFAULT_PARENT

    above = here().rstrip("/") + "/"
    return queue.path.startswith(above) and DEFAULT_PARENT not in queue.path[len(above) :].split("/")[1:]


def queue_name(place: QueueDir, known: Sequence[QueueDir] | None = None) -> str:
    """How to name this queue after -q in this directory: by its stem where that means it alone, else by its path."""
    from gpusched.host.queue import queue_dir

    bearers = _bearers(place.name, queue_dir.known() if known is None else known)
    if [queue.path for queue in bearers] == [place.path]:
        return place.name
    path = _short(place.path)
    return path if os.sep in path else f"./{path}"


def here() -> str:
    """The working directory, to show what lies below it by a short path; the root where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _short(path: str) -> str:
    from gpusched.views.words import short_path

    return short_path(path, here())


# ---- its jobs --------------------------------------------------------------------------------------


def open_store(place: QueueDir, *, read_only: bool = True) -> Store:
    from gpusched.host.store import Store

    return Store(place.database, read_only=read_only)


def claims(settings: Settings) -> Claims | None:
    """The claims of this box, if anybody has made any yet: asking makes no directory."""
    from gpusched.host.gpus import claims

    places = [settings.claims_dir] if settings.claims_dir else [f"{p}/gpusched-claims" for p in claims.CANDIDATES]
    found = next((path for path in places if os.path.isdir(path)), None)
    return claims.Claims(found) if found is not None else None


def parse_jobs(words: Sequence[str], store: Store) -> list[int]:
    """Ids, ranges such as `3-7` and names -> ids, each once. Raises GpuschedError for one that is not there."""
    last = sum(store.counts().values())
    ids: dict[int, None] = {}
    for word in words:
        named = store.find_name(word)
        if named is not None:
            ids[named] = None
            continue
        first, dash, end = word.partition("-")
        if not first.isdecimal() or (dash and not end.isdecimal()) or len(word) > 24:
            raise GpuschedError(
                f"{word!r} names no job", hint="an id such as 12, a range such as 3-7, or a job's name="
            )
        low, high = int(first), int(end or first)
        if not 1 <= low <= high <= last:
            have = f"it has jobs 1 to {last}" if last else "it has no jobs"
            raise GpuschedError(
                f"there is no job {word} in the queue {os.path.dirname(store.path)}",
                hint=f"{have}; `gpusched status -v` lists them, -q names another queue",
            )
        ids.update(dict.fromkeys(range(low, high + 1)))
    return list(ids)


def parse_job(word: str, store: Store) -> int:
    """The one job that a word names."""
    ids = parse_jobs([word], store)
    if len(ids) != 1:
        raise GpuschedError(f"{word} names {len(ids)} jobs, but one is asked for", hint="an id such as 12")
    return ids[0]


def resume_command(place: QueueDir, store: Store, *more: str) -> str:
    """What to type here to have this queue dispatched as it was, with the flags that say so."""
    from gpusched.common.text import clean, mask_secrets
    from gpusched.host.queue import queue_dir

    source = os.fsdecode(store.source() or b"FILE")
    typed = store.meta("typed")
    if typed is not None:
        stem, given = json.loads(typed)
        words = [mask_secrets(word) for word in given]
    else:
        words = ["run", _short(source) if source != "-" else source]
        stem = os.path.splitext(os.path.basename(source))[0]
    end = words.index("--") if "--" in words else len(words)
    words, command = words[:end], words[end:]
    if place.path not in (queue_dir.default_path(stem), queue_dir.default_path(stem, source)):
        words += ["--log-dir", _short(place.path)]
    line = shlex.join(["gpusched", *words, *_flags(store, words[0]), *more, *command])
    return clean(mask_secrets(line) if command else line)


def _flags(store: Store, verb: str) -> list[str]:
    """The flags that make what the settings are here into what they were for this queue."""
    from gpusched.config.run_settings import RUN_SETTINGS, with_defaults
    from gpusched.config.settings import SETTINGS, Settings, show
    from gpusched.config.settings import load as load_quietly

    text = store.meta("settings")
    if text is None:
        return []
    here, then = with_defaults(load_quietly(), verb).settings, Settings.from_json(text)
    flags: list[str] = []
    for name in (name for name in RUN_SETTINGS if name != "log_dir"):
        setting, value = SETTINGS[name], getattr(then, name)
        if value == getattr(here, name):
            continue
        if setting.is_switch:
            flags.append(setting.flag if value else f"--no-{setting.flag[2:]}")
        else:
            flags += [setting.flag, show(setting, value)]
    return flags
