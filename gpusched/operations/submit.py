"""The queue that a list belongs to, and the options that hold there. Starts nothing."""

from __future__ import annotations

import functools
import json
import os
import time
from dataclasses import replace

from gpusched.common.errors import GpuschedError
from gpusched.common.text import mask_secrets
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import Settings
from gpusched.host.code.job_dirs import JobDirs
from gpusched.host.queue import queue_dirs as queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, job_table, meta_table
from gpusched.lists import dependencies
from gpusched.lists.jobfile import JobFile
from gpusched.lists.submit import STREAM, JobSource, Source, SubmitOptions, owner_of, refusal


def find_queue_dir(source: Source, settings: Settings) -> QueueDir:
    """Return the directory of this list's queue, made or not."""
    if settings.log_dir:
        return queue_dirs.locate(settings.log_dir, settings.state_dir)
    if source == STREAM:
        return queue_dirs.locate(queue_dirs.default_path(_stream_name(os.getpid())), settings.state_dir)
    stem = os.path.splitext(os.path.basename(source))[0] if isinstance(source, str) else source.stem
    own = owner_of(source)
    found = queue_dirs.locate(queue_dirs.default_path(stem), settings.state_dir)
    if found.exists():
        with Store(found.database) as store:
            owner = meta_table.source(store)
        if owner not in (None, own):
            return queue_dirs.locate(queue_dirs.default_path(stem, os.fsdecode(own)), settings.state_dir)
    return found


@functools.cache
def _stream_name(pid: int) -> str:
    return time.strftime(f"stdin-%Y%m%d-%H%M%S-{pid}")


def make_queue_dir(source: Source, settings: Settings) -> QueueDir:
    """Return the directory of this list's queue, made if it is not there.

    A queue belongs to one list: another file of the same stem gets a name with a hash, and a log_dir that belongs to
    another list is refused.
    """
    found = find_queue_dir(source, settings)
    while (owner := _make(found, source)) is not None:
        again = find_queue_dir(source, settings)  # another file of the same stem may have been a moment faster
        if again == found:
            raise _other_list(found, owner)
        found = again
    queue_dirs.remember(found)
    return found


def _make(queue_dir: QueueDir, source: Source) -> bytes | None:
    """Make the queue of this list, or find it made. Return its owner if that is another list."""
    owner = owner_of(source)
    queue_dirs.prepare(queue_dir)
    with Store(queue_dir.database, create=True) as store, store.transaction():
        found = meta_table.source(store)
        if found not in (None, owner):
            return found
        if found is None:
            meta_table.write(store, "source", owner)
        if not isinstance(source, str):
            meta_table.write(store, "typed", json.dumps([source.stem, source.words]))
    return None


def _other_list(queue_dir: QueueDir, owner: bytes) -> GpuschedError:
    name = "standard input" if owner == b"-" else mask_secrets(owner.decode("utf-8", "replace"))
    return GpuschedError(
        f"this directory is the queue of another list: {name}",
        where=queue_dir.path,
        hint="choose another --log-dir, or leave it out",
    )


# ---- the options -----------------------------------------------------------------------------------


def submit_options(
    queue_dir: QueueDir,
    loaded: LoadedSettings,
    *,
    force: bool = False,
    retry_failed: bool = False,
) -> SubmitOptions:
    """Return how a list is read and what its jobs need, in this queue. Raises GpuschedError if --setup is no file."""
    setup = loaded.settings.setup
    if setup and not os.path.isfile(setup):
        raise GpuschedError("there is no such file", where=f"--setup {setup}")
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

    So a start that states less, from cron or retyped, lifts no limit of the one that runs.
    """
    if not queue_dir.exists() or queue_dir.dispatcher() is None:
        return loaded.settings
    with Store(queue_dir.database) as store:
        text = meta_table.read(store, "settings")
    if text is None:
        return loaded.settings
    stated = {name: getattr(loaded.settings, name) for name, origin in loaded.origins.items() if origin != "default"}
    return replace(Settings.from_json(text), **stated)


# ---- the queue before the submission ---------------------------------------------------------------


def refuse_empty(jobs: JobFile, source: JobSource) -> None:
    """Raise GpuschedError for a list without a command."""
    if not jobs.specs and not source.is_stream:
        hint = "one shell command a line; lines with # are skipped"
        raise GpuschedError("holds no command", where=source.name, hint=hint)


def refuse_unmet(jobs: JobFile, queue_dir: QueueDir, data: bytes, name: str) -> None:
    """Raise GpuschedError for jobs that wait for each other, or for one that is neither in the list nor in its queue.

    `data` is the text of the list, and `name` its name, for the message.
    """
    known: set[str] = set()
    if queue_dir.exists():
        with Store(queue_dir.database) as store:
            known = job_table.names(store)
    wrong = dependencies.check(jobs.specs, data, known=known)
    if wrong:
        raise refusal(wrong, name)


def has_work(queue_dir: QueueDir) -> bool:
    """Return True if a dispatcher works on the queue, or jobs of it wait or run."""
    if not queue_dir.exists():
        return False
    if queue_dir.dispatcher() is not None:
        return True
    with Store(queue_dir.database) as store:
        return job_table.has_work(store)
