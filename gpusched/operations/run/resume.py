"""The command that has a queue dispatched again as it was."""

from __future__ import annotations

import json
import os
import shlex

from gpusched.common.text import clean, mask_secrets
from gpusched.config import layers
from gpusched.config.settings import RUN_SETTINGS, SETTINGS, Settings
from gpusched.host.queue import queue_dirs as queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, meta_table
from gpusched.operations.queues import queue_name, shown_path
from gpusched.operations.run.stored import read_set


def resume_command(queue_dir: QueueDir, store: Store) -> str:
    """Return what to type here to have this queue dispatched as it was, with the flags that this needs."""
    if meta_table.cluster_of(store):
        return "gpusched cluster up HOSTS.yaml"
    if (stored := meta_table.source(store)) is None:
        return shlex.join(["gpusched", "start", "-q", queue_name(queue_dir)])
    source = os.fsdecode(stored)
    typed = meta_table.read(store, "typed")
    if typed is not None:
        stem, typed_words = json.loads(typed)
        words = [mask_secrets(word) for word in typed_words]
    else:
        words = ["run", shown_path(source) if source != "-" else source]
        stem = os.path.splitext(os.path.basename(source))[0]
    end = words.index("--") if "--" in words else len(words)
    words, command = words[:end], words[end:]
    if queue_dir.path not in (queue_dirs.default_path(stem), queue_dirs.default_path(stem, source)):
        words += ["--log-dir", shown_path(queue_dir.path)]
    line = shlex.join(["gpusched", *words, *_changed_flags(store, words[0]), *command])
    return clean(mask_secrets(line) if command else line)


def _changed_flags(store: Store, verb: str) -> list[str]:
    """Return the flags that turn the settings of this directory into those that the queue had."""
    text = meta_table.read(store, "settings")
    if text is None:
        return []
    now, then = layers.with_defaults(layers.load(), verb).settings, Settings.from_json(text)
    kept = {"log_dir", *read_set(store)}  # without a flag
    names = [name for name in RUN_SETTINGS if name not in kept and getattr(then, name) != getattr(now, name)]
    return [word for name in names for word in SETTINGS[name].flags_for(getattr(then, name))]
