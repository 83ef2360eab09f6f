"""The queue that a list belongs to, and the options that hold there. Starts nothing."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from gpusched.common.errors import GpuschedError
from gpusched.common.libraries import refuse_missing
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import Settings
from gpusched.host.code.job_dirs import JobDirs
from gpusched.host.queue import queue_dirs as queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, job_table, meta_table
from gpusched.lists.joblist import JobFile
from gpusched.lists.submit import STREAM, JobSource, Source, SubmitOptions, owner_of, refusal, refuse_empty, refused
from gpusched.operations.run.stored import with_stored

T = TypeVar("T")


def find_queue_dir(source: Source, settings: Settings) -> QueueDir:
    """Return the directory of this list's queue, made or not.

    A queue belongs to one list: another file of the same stem gets a name with a hash, and a log_dir that belongs to
    another list is refused.
    """
    own = owner_of(source)
    for queue_dir in _candidates(source, settings):
        owner = _owner(queue_dir)
        if owner is None or owner == own:
            return queue_dir
    assert owner is not None
    from gpusched.common.text import mask_secrets

    name = "standard input" if owner == b"-" else mask_secrets(owner.decode("utf-8", "replace"))
    raise GpuschedError(
        f"this directory is the queue of another list: {name}",
        where=queue_dir.path,
        hint="choose another name for -q (or --log-dir), or leave it out",
    )


def make_queue_dir(source: Source, settings: Settings) -> QueueDir:
    """Return the directory of this list's queue, made if it is not there."""
    queue_dir = find_queue_dir(source, settings)
    while not _make(queue_dir, source):
        queue_dir = find_queue_dir(source, settings)
    queue_dirs.remember(queue_dir)
    return queue_dir


def _candidates(source: Source, settings: Settings) -> list[QueueDir]:
    """Return the directories that the queue of a list may have, the preferred one first."""
    if settings.log_dir:
        paths = [settings.log_dir]
    elif source == STREAM:
        paths = [queue_dirs.default_path(_stream_name(os.getpid()))]
    else:
        stem = os.path.splitext(os.path.basename(source))[0] if isinstance(source, str) else source.stem
        paths = [queue_dirs.default_path(stem), queue_dirs.default_path(stem, os.fsdecode(owner_of(source)))]
    return [queue_dirs.locate(path, settings.state_dir) for path in paths]


@functools.cache
def _stream_name(pid: int) -> str:
    return time.strftime(f"stdin-%Y%m%d-%H%M%S-{pid}")


def _owner(queue_dir: QueueDir) -> bytes | None:
    """Return the list that a queue belongs to; None if it belongs to none, or does not exist."""
    return _read(queue_dir, meta_table.source, None)


def _read(queue_dir: QueueDir, read: Callable[[Store], T], default: T) -> T:
    """Return what `read` finds in the database of a queue, or the default if there is no such queue."""
    if not queue_dir.exists():
        return default
    with Store(queue_dir.database) as store:
        return read(store)


def _make(queue_dir: QueueDir, source: Source) -> bool:
    """Make the queue of this list, or find it made. Return False if another list was a moment faster."""
    owner = owner_of(source)
    queue_dirs.prepare(queue_dir)
    with Store(queue_dir.database, create=True) as store, store.transaction():
        if meta_table.source(store) not in (None, owner):
            return False
        meta_table.write(store, "source", owner)
        if not isinstance(source, str):
            meta_table.write(store, "typed", json.dumps([source.stem, source.words]))
    return True


# ---- the options -----------------------------------------------------------------------------------


def submit_options(
    queue_dir: QueueDir,
    loaded: LoadedSettings,
    *,
    force: bool = False,
    retry_failed: bool = False,
) -> SubmitOptions:
    """Return how a list is read and what its jobs need, in this queue.

    Raises GpuschedError for a shell or a set-up file that cannot be used.
    """
    from gpusched.host.attempts.launcher import find_shell

    find_shell(loaded.settings.shell)
    if loaded.settings.notify:
        refuse_missing("--notify", ["apprise"])
    if loaded.settings.setup:
        from gpusched.host.attempts.setup import check_setup

        check_setup(loaded.settings.setup)
    return SubmitOptions(_settings_in(queue_dir, loaded), os.fsencode(os.getcwd()), force, retry_failed)


def with_dirs(options: SubmitOptions, queue_dir: QueueDir) -> SubmitOptions:
    """Return the options with the directories in which the jobs run, if they have none.

    Raises GpuschedError for a snapshot of files that git does not know.
    """
    if options.dirs is not None:
        return options
    copies = os.path.join(queue_dir.path, "snapshots") if options.settings.snapshot else ""
    return replace(options, dirs=JobDirs(os.fsdecode(options.cwd), (queue_dir.path, queue_dir.state), copies))


def _settings_in(queue_dir: QueueDir, loaded: LoadedSettings) -> Settings:
    """Return the settings for a start: while a dispatcher works on the queue, its own, except those stated this time.

    So a start that states less, from cron or retyped, lifts no limit of the one that runs. What `gpusched set` has
    stored for the queue counts more than the files.
    """

    def read(store: Store) -> Settings:
        text = meta_table.read(store, "settings")
        if text is None or queue_dir.dispatcher() is None:
            return with_stored(loaded, store)
        stated = {name: getattr(loaded.settings, name) for name, at in loaded.origins.items() if at != "default"}
        return with_stored(loaded._replace(settings=replace(Settings.from_json(text), **stated)), store)

    return _read(queue_dir, read, loaded.settings)


# ---- the jobs before the submission ----------------------------------------------------------------


def read_jobs(
    source: JobSource,
    loaded: LoadedSettings,
    *,
    force: bool = False,
    retry_failed: bool = False,
    accept: Callable[[JobFile, str], JobFile] = refused,
) -> tuple[QueueDir, SubmitOptions, JobFile]:
    """Return the queue of a list, the options that hold there, and its jobs; `accept` gets the jobs, and the name.

    Raises GpuschedError for a list that cannot be run.
    """
    queue_dir = find_queue_dir(source.source, loaded.settings)
    options = submit_options(queue_dir, loaded, force=force, retry_failed=retry_failed)
    jobs = accept(source.parse(options), source.name)
    if not source.is_stream:
        refuse_empty(jobs, source.name)
    refuse_unmet(jobs, queue_dir, source.name)
    return queue_dir, options, jobs


def refuse_unmet(jobs: JobFile, queue_dir: QueueDir, name: str) -> None:
    """Raise GpuschedError for jobs that wait for each other, or for one that is neither in the list nor in its queue.

    `name` is the name of the list, for the message.
    """
    if not any(spec.attributes.after for spec in jobs.specs):
        return
    from gpusched.lists import dependencies

    wrong = dependencies.check(jobs.specs, known=_read(queue_dir, job_table.names, set()))
    if wrong:
        raise refusal(wrong, name)


def has_work(queue_dir: QueueDir) -> bool:
    """Return True if a dispatcher works on the queue, or jobs of it wait or run."""
    return queue_dir.dispatcher() is not None or _read(queue_dir, job_table.has_work, False)
