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
from gpusched.errors import GpuschedError

if TYPE_CHECKING:
    from gpusched.config import Settings
    from gpusched.host.claims import Claims
    from gpusched.host.queuedir import QueueDir
    from gpusched.host.store import Store

queue_option = click.option(
    "-q",
    "--queue",
    metavar="PATH|STEM",
    help="Name the queue by its directory or its stem.  [default: the one that is dispatched, else the newest]",
)


def now() -> float:
    return time.time()


def find(name: str | None, *, to_change: bool = False) -> QueueDir:
    """The queue that is meant; which one is said where -q does not. Raises GpuschedError where there is none.

    Where several are dispatched, and one is `to_change`, it has to be named.
    """
    from gpusched.host import queuedir

    place = queuedir.resolve(name, load().settings.state_dir)
    known = queuedir.known() if name is None else []
    if len(known) > 1:
        live = [queue for queue in known if queue.dispatcher() is not None]
        if to_change and len(live) > 1:
            names = ", ".join(queue_name(queue, known) for queue in live)
            raise GpuschedError(f"{len(live)} queues are being dispatched: {names}", hint="name one of them with -q")
        which = "the one that is dispatched" if live else "the newest"
        click.echo(f"gpusched: queue {queue_name(place, known)}, {which}; -q names another", err=True)
    return place


def open_store(place: QueueDir, *, read_only: bool = True) -> Store:
    from gpusched.host.store import Store

    return Store(place.database, read_only=read_only)


def claims(settings: Settings) -> Claims | None:
    """The claims of this box, if anybody has made any yet: asking makes no directory."""
    from gpusched.host import claims

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
    from gpusched.core.masking import clean, mask_secrets
    from gpusched.host import queuedir

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
    if place.path not in (queuedir.default_path(stem), queuedir.default_path(stem, source)):
        words += ["--log-dir", _short(place.path)]
    line = shlex.join(["gpusched", *words, *_flags(store), *more, *command])
    return clean(mask_secrets(line) if command else line)


def _flags(store: Store) -> list[str]:
    """The flags that make what the settings are here into what they were for this queue."""
    from gpusched.cli.work import SETTINGS as TAKEN
    from gpusched.config import SETTINGS, Settings, show
    from gpusched.config import load as load_quietly

    text = store.meta("settings")
    if text is None:
        return []
    here, then = load_quietly().settings, Settings.from_json(text)
    flags: list[str] = []
    for name in (name for name in TAKEN if name != "log_dir"):
        setting, value = SETTINGS[name], getattr(then, name)
        if value == getattr(here, name):
            continue
        if setting.is_switch:
            flags.append(setting.flag if value else f"--no-{setting.flag[2:]}")
        else:
            flags += [setting.flag, show(setting, value)]
    return flags


def _short(path: str) -> str:
    from gpusched.views.words import short_path

    return short_path(path, os.getcwd())


def queue_name(place: QueueDir, known: Sequence[QueueDir] | None = None) -> str:
    """How to name this queue after -q: by its stem, unless another queue of the same stem comes first."""
    from gpusched.host import queuedir

    for other in queuedir.known() if known is None else known:
        if other.name == place.name:
            return place.name if other.path == place.path else _short(place.path)
    return _short(place.path)
