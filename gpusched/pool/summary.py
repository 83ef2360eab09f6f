"""The end of a pool in a few lines: its items, its files, and what is known of its workers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpusched.common.processes import all_pids, name_of
from gpusched.common.text import clean, count, mask_secrets, one_line
from gpusched.core.jobs.failure import kind_of_reason
from gpusched.host.store.pool.items import ItemCounts, ItemStore
from gpusched.pool.coordinator.progress import upload_text
from gpusched.pool.messages import CPU
from gpusched.pool.options import PoolOptions
from gpusched.views.words import span

_MPS = "nvidia-cuda-mps"  # the beginning of its processes' names


@dataclass(frozen=True)
class PoolSummary:
    """The work of a pool. `workers`: the facts that its last coordinator has left."""

    output: str
    counts: ItemCounts = field(default_factory=ItemCounts)
    frequent_error: str = ""  # in which most of the items with an error have ended; its kind, if their texts differ
    frequency: int = 0
    files: tuple[str, ...] = ()
    problem: str = ""
    workers: Mapping[str, Any] = field(default_factory=dict)
    stable: Mapping[str, int] = field(default_factory=dict)  # by device: the workers that it is to have
    upload: Mapping[str, Any] = field(default_factory=dict)  # see PartsPublisher.status; `url` without secrets

    @property
    def parts_left(self) -> int:
        """The number of parts that could not be uploaded."""
        return int(self.upload.get("parts", 0) - self.upload.get("uploaded", 0))

    def document(self, code: int) -> dict[str, Any]:
        """Return the summary for programs."""
        return {"exit_code": code, **asdict(self), "counts": self.counts._asdict()}

    @property
    def _gpus(self) -> dict[str, int]:
        return {device: number for device, number in self.stable.items() if device != CPU}

    def lines(self) -> list[str]:
        """Return the summary for people."""
        total, results, errors = self.counts
        lines = [f"items    {results} of {total} have a result" + (f", {errors} ended in an error" if errors else "")]
        if self.counts.open:
            lines[0] += f", {self.counts.open} are left: the same command goes on"
        if errors:
            lines.append(f"error    {self.frequency} of {errors}: {self.frequent_error}")
        if self.problem:
            lines.append(f"stopped  {clean(self.problem)}")
        if seconds := self.workers.get("work_s"):
            done, loads, deaths = (self.workers.get(name, 0) for name in ("done", "loads", "deaths"))
            died = f", {count(deaths, 'worker')} died" if deaths else ""
            lines.append(f"rate     {done / seconds:.3g} items/s, {done} in {span(seconds)}{died}")
            held = self.workers.get("held", 0)
            where = f" on {self.workers['gpus']} of the {count(held, 'GPU')} it held," if held else ""
            if loads:  # none: the workers of an earlier coordinator have gone on
                times = "once" if loads == 1 else f"{loads} times"
                lines.append(f"models   loaded {times}, ready{where} after {span(self.workers['ready_s'])}")
        if (late := self.workers.get("late")) and not self.problem:
            were = "was" if late == 1 else "were"
            lines.append(
                f"         {count(late, 'worker')} {were} still loading at the last item: cancelled, no failure"
            )
        if splits := self.workers.get("splits"):
            error = one_line(self.workers["split_by"], 200)
            lines.append(f"batches  {splits} raised, their items were tried one by one: {error}")
        if self._gpus and self.workers:
            mps = "MPS runs" if any(name_of(pid).startswith(_MPS) for pid in all_pids()) else "MPS does not run"
            labels = self.workers.get("labels", {})
            each = [f"{number} on {labels[device]}" for device, number in self._gpus.items() if device in labels]
            lines.append(f"workers  {'to have at once: ' if each else ''}{', '.join(each) or 'none'}; {mps}")
        if self.upload:
            lines.append(f"upload   {upload_text(self.upload)}, to {self.upload['url']}")
        if self.parts_left:
            lines.append(f"         {self.parts_left} are left, the same command goes on: {self.upload['error']}")
        lines += [f"written  {path}" for path in self.files]
        if errors:
            lines.append("next     the same command with --retry-errors tries them again")
        return lines


def frequent_error(texts: Iterable[tuple[str, int]]) -> tuple[str, int]:
    """Return the most frequent kind of error, or its text if all of them are alike, and the number of its items."""
    kinds: dict[str, Counter[str]] = {}
    for text, number in texts:
        kinds.setdefault(kind_of_reason(text), Counter())[text] += number
    kind, alike = max(kinds.items(), key=lambda each: each[1].total(), default=("", Counter[str]()))
    return next(iter(alike)) if len(alike) == 1 else kind, alike.total()


def read_summary(store: ItemStore, options: PoolOptions, files: list[str], *, is_new: bool) -> PoolSummary:
    """Return the summary of a pool from its store, with what is known of its workers if that `is_new`."""
    workers, stable, upload = (json.loads(store.read(key) or "{}") for key in ("workers", "stable", "upload"))
    upload = {**upload, "url": mask_secrets(clean(options.upload))} if options.upload and upload else {}
    if not is_new:
        workers = {}
    text, frequency = frequent_error(store.error_texts())
    return PoolSummary(
        options.output,
        store.counts(),
        frequent_error=one_line(text, 200),
        frequency=frequency,
        files=tuple(files),
        problem=(store.read("problem") or "") if is_new else "",
        workers=workers,
        stable=stable,
        upload=upload,
    )
