"""Settings that a queue keeps until they are set again: stored for the next starts, and passed to its dispatcher."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.libraries import refuse_missing
from gpusched.common.quantities import format_size, nearest, parse_size
from gpusched.common.text import mask_urls
from gpusched.config import layers
from gpusched.config.settings import SETTINGS, show
from gpusched.core.model import SET_REQUEST
from gpusched.core.plan import learned_memory, observe
from gpusched.core.plan.hand_back import find_surplus
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, meta_table, request_table
from gpusched.operations import queues
from gpusched.operations.change.requests import ChangeReport, terminate
from gpusched.operations.run.stored import read_set, set_words, stored_settings

TAG_MEMORY = "mem."  # begins the word of a tag: mem.train=18G

# Settings that stay as they are while a queue is dispatched, and the remedy.
FIXED = {
    "of each job, once it is in the queue: gpusched edit JOB": "gpus_per_job mem time_limit retries",
    "taken when jobs are submitted: state it at a start": "strip_gpu_env snapshot tag_max_gpus",
    "taken when a dispatcher starts: state it there, or in a settings file": "log_dir state_dir claims_dir simulate "
    "idle_exit autostart max_gpus_per_user",
}


def set_settings(queue_dir: QueueDir, words: Sequence[str], *, at_once: bool = False) -> ChangeReport:
    """Store these settings (`max-gpus=2`; `max-gpus=` takes it back), and pass them to a dispatcher that works.

    `mem.TAG=18G` is what the jobs with mem=auto of a tag count with; `mem.TAG=` has it learned anew. `at_once` has the
    jobs stopped, and queued again, that hold more GPUs than the queue may use then. Raises GpuschedError for what
    cannot be set, and changes nothing.
    """
    of_tags = [word for word in words if word.startswith(TAG_MEMORY)]
    texts = _parse([word for word in words if word not in of_tags])
    if texts.get("notify"):
        refuse_missing("--notify", ["apprise"])
    with queues.open_store(queue_dir, read_only=False) as store:
        pid = queue_dir.dispatcher()
        if "grace" in texts and meta_table.read(store, meta_table.AGENT_SESSION):
            hint = "`grace:` in HOSTS.yaml, which the lease counts with"
            raise GpuschedError("is that of the cluster on a queue of its node", where="grace", hint=hint)
        with store.transaction():
            now = _store(store, {**texts, **_set_tag_memory(store, of_tags)})
            surplus = _surplus(queue_dir, store, now) if at_once else []
            if pid is not None and now:
                request_table.add(store, SET_REQUEST + json.dumps(now), queues.now())
            if pid is not None and at_once:
                request_table.add(store, "hand_back", queues.now())
        queue_dir.ring()
        report = _report(queue_dir, store)
        for job_id, number in surplus:
            is_stopped = pid is not None or terminate(queue_dir, job_id, number)
            text = "is being stopped, and queued again: no try is spent" if is_stopped else "is no longer seen running"
            report.add(job_id, text, refused=not is_stopped)
        if at_once and not surplus:
            report.notes.append("no more GPUs are in use than may be")
        if now and pid is None:
            report.notes.append("no dispatcher works on this queue: this counts from its next start on")
    return report


def show_settings(queue_dir: QueueDir, words: Sequence[str] = ()) -> ChangeReport:
    """Return what is set for this queue, or the values of the settings that are named."""
    with queues.open_store(queue_dir) as store:
        report, settings, own = _report(queue_dir, store), stored_settings(store), read_set(store)
    if words:
        report.notes = []
        for name, key in {_name_of(word, word): word.lstrip("-") for word in words}.items():
            setting, value = SETTINGS[name], getattr(settings, name)
            text = setting.default_text() if value == setting.default else show(setting, value)
            report.notes.append(f"{key}={text}" + ("" if name in own else "  (not set for this queue)"))
    return report


def _report(queue_dir: QueueDir, store: Store) -> ChangeReport:
    stored = read_set(store)
    notes = set_words(stored) or ["nothing is set for this queue"]
    shown = {name: SETTINGS[name].masked(value) for name, value in stored.items()}
    return ChangeReport(queue_dir.path, notes=notes, facts={"set": shown})


def _store(store: Store, texts: Mapping[str, str]) -> dict[str, Any]:
    """Store the settings of these texts; return the values that count now."""
    is_of_directory = meta_table.source(store) is not None
    files = layers.load() if is_of_directory else layers.load(environ={}, cwd="/")  # as its dispatcher reads them
    stated = layers.load(
        {name: text for name, text in texts.items() if text}, environ={}, cwd=queues.current_directory()
    )
    now = {name: getattr((stated if text else files).settings, name) for name, text in texts.items()}
    kept = {**read_set(store), **now}
    meta_table.write(store, "set", json.dumps({name: value for name, value in kept.items() if texts.get(name, "x")}))
    settings = stored_settings(store).with_values(now)
    if settings.max_gpus is not None and settings.gpus_per_job > settings.max_gpus:
        hint = f"each job of this queue gets {settings.gpus_per_job} GPUs (--gpus-per-job)"
        raise GpuschedError("would let no job start", where=f"max-gpus={settings.max_gpus}", hint=hint)
    if meta_table.read(store, "settings") is not None:
        meta_table.write(store, "settings", settings.to_json())
    if "on_dep_fail" in now:
        meta_table.write(store, "on_dep_fail", now["on_dep_fail"])
    return now


def _set_tag_memory(store: Store, words: Sequence[str]) -> dict[str, str]:
    """Return the text of `tag_mem` with these words, mem.TAG=SIZE; mem.TAG= has the memory of a tag learned anew."""
    if not words:
        return {}
    sizes = {tag: format_size(size) for tag, size in stored_settings(store).tag_mem_bytes.items()}
    learned = learned_memory.from_json(meta_table.read(store, learned_memory.KEY))
    for word in words:
        tag, equals, size = word.removeprefix(TAG_MEMORY).rpartition("=")
        if not tag or not equals:
            raise GpuschedError("names no tag with its memory", where=word, hint="for example: mem.train=18G")
        sizes.pop(tag, None)
        if size:
            try:
                sizes[tag] = format_size(parse_size(size))
            except ValueError as error:
                raise GpuschedError(f"is {size!r}, but must be {error}", where=TAG_MEMORY + tag) from None
        else:
            learned = tuple(each for each in learned if each.tag != tag)
    meta_table.write(store, learned_memory.KEY, learned_memory.to_json(learned))
    return {"tag_mem": ",".join(f"{tag}={size}" for tag, size in sizes.items())}


def _surplus(queue_dir: QueueDir, store: Store, now: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the attempts that hold more GPUs than the queue may use: job and number."""
    board = queues.read_dispatcher(queue_dir).board
    limit = stored_settings(store).gpus_at_once if board is None or "max_gpus" in now else board.limits.max_gpus
    running = [pair for pair in attempt_table.running(store) if pair[0].origin != "exec"]
    attempts = [observe.open_attempt(job, row) for job, row in running]
    return [(attempt.job.id, attempt.number) for attempt in find_surplus(attempts, limit)]


def _parse(words: Sequence[str]) -> dict[str, str]:
    """Return the text of each setting, by its name; empty for one that is taken back."""
    texts: dict[str, str] = {}
    for word in words:
        key, equals, text = word.partition("=")
        name = _name_of(key if equals else "", word)
        for why, names in FIXED.items():
            if name in names.split():
                raise GpuschedError("cannot change while a queue is dispatched", where=key, hint=f"it is {why}")
        texts[name] = text
    return texts


def _name_of(key: str, word: str) -> str:
    """Return the name of the setting that a key means. Raises GpuschedError if there is none; `word` is the whole."""
    name = key.lstrip("-").replace("-", "_")
    if name not in SETTINGS:
        key, _, text = word.partition("=")
        meant = nearest(key.lstrip("-").replace("-", "_"), SETTINGS).replace("_", "-")
        hint = f"did you mean {meant}={text or 'VALUE'}?" if meant else "gpusched config lists the settings"
        raise GpuschedError("is no setting with its value", where=mask_urls(word), hint=mask_urls(hint))
    return name
