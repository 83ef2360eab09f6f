"""One start of `gpusched shard`: the plan as before or anew, the files that the shards need, and the jobs.

Prints only what a plan that falls back has to say; the work itself is that of every verb.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpusched.cli.features.shard_plan import show
from gpusched.cli.options import say
from gpusched.cli.run.options import RunOptions
from gpusched.cli.run.session import accept, session
from gpusched.common.errors import GpuschedError
from gpusched.host.store import job_table, meta_table, submission
from gpusched.operations import queues
from gpusched.shards.earlier_run import SPLIT, EarlierRun
from gpusched.shards.results import read_details

LOCK = "shard.lock"

if TYPE_CHECKING:
    from gpusched.core.model import Device
    from gpusched.host.queue.shard_items import Items
    from gpusched.lists.jobfile import JobFile
    from gpusched.lists.submit import SubmitOptions
    from gpusched.operations.run import Queue
    from gpusched.shards.plan import Merge, ShardPlan, ShardWish


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """What was typed. It is the source of the jobs: its queue is that of the command, its items and its directory."""

    command: tuple[str, ...]
    total: int | None
    items: str | None
    wish: ShardWish
    weights: str | None
    output_dir: str | None
    patterns: tuple[str, ...]
    merge: Merge | None
    words: list[str]

    @property
    def stem(self) -> str:
        """The script's name, and a hash of the command."""
        words = self.command[0].split() if len(self.command) == 1 else list(self.command)
        modules = [words[n].rpartition(".")[2] for n in range(1, len(words)) if words[n - 1] == "-m"]
        scripts = [word for word in words if word.endswith((".py", ".sh", ".pl", ".R", ".jl"))]
        name = os.path.splitext(os.path.basename([*scripts, *modules, *words, "shard"][0]))[0]
        return f"{name}-{hashlib.blake2b(self.owner, digest_size=4).hexdigest()}"

    @property
    def owner(self) -> bytes:
        items = [] if self.items is None else ["--items", self.items]
        directory = [] if self.output_dir is None else ["--output-dir", self.output_dir]
        return os.fsencode(shlex.join(["shard", *items, *directory, "--", *self.command]))

    @property
    def line(self) -> str:
        from gpusched.shards.jobs import command_line

        return command_line(self.command)


class ShardStart:
    """One start of `gpusched shard`: the plan as before or anew, the files that the shards need, and the work."""

    def __init__(self, given: ShardRequest, asked: RunOptions, force: bool) -> None:
        from gpusched.operations.submit import find_queue_dir, submit_options

        self._given = given
        self._asked = asked
        self._place = find_queue_dir(given, asked.loaded.settings)
        self._rules = submit_options(self._place, asked.loaded, force=force, retry_failed=asked.retry_failed)
        self._force = force
        self._items = _open_items(given)
        self._begun = EarlierRun(self._place, given.owner)

    def go(self) -> int:
        from gpusched.operations.devices import open_devices
        from gpusched.operations.run import run_jobs
        from gpusched.operations.submit import refuse_unmet

        rules, place = self._rules, self._place
        with open_devices(rules.settings) as devices:
            plan, jobs = self._plan(devices.look(place) or ())
            refuse_unmet(jobs, place, b"", "shard")
            devices.check(jobs, rules, place)
            if self._asked.dry_run:
                return show(place, plan, jobs, self._begun.states, as_json=self._asked.as_json)
            return run_jobs(
                self._given,
                jobs,
                rules,
                devices,
                prepare=lambda queue: self._prepare(queue, plan),
                session=session(self._asked, read_details=read_details),
            )

    # ---- the plan ----

    def _plan(self, known: tuple[Device, ...]) -> tuple[ShardPlan, JobFile]:
        from gpusched.shards import jobs as told
        from gpusched.shards.plan import make_plan, shard_count

        given, items = self._given, self._items
        before = self._begun.plan
        if before is not None and before.asked == self._what_was_asked():
            plan = replace(before, shards=tuple(replace(s, items_file=None, outputs=()) for s in before.shards))
        else:
            if given.items is not None and items.count < 1:
                raise GpuschedError("there is no item in it", where=f"--items {given.items}")
            slots = _slots(self._rules, known, needed=not (given.wish.num_shards or given.wish.shard_size))
            n, note = shard_count(items.count, given.wish, slots)
            if note:
                say(note)
            plan = make_plan(items.count, given.wish, n, slots, weights=self._weights())
        plan = replace(
            plan,
            items=items.path,
            command=given.line,
            merge=given.merge,
            asked=self._what_was_asked(),
        )
        names = told.check_command(given.line, plan, from_items=given.items is not None)
        merged = any("{output_dir}" in pattern for pattern in given.patterns)
        for where, used in (("the command", "output_dir" in names), ("--merge", merged)):
            if used and given.output_dir is None:
                raise GpuschedError("{output_dir} stands for --output-dir, which is not given", where=where)
        if "items_file" in names:
            files = [f"{self._place.path}/items/{s.suffix}{items.suffix}" for s in plan.shards]
            shards = [replace(s, items_file=file) for s, file in zip(plan.shards, files, strict=True)]
            plan = replace(plan, shards=tuple(shards))
        self._refuse_copies()
        self._look_at_formats()
        plan = told.with_outputs(plan, given.patterns, given.output_dir or "", os.getcwd())
        self._begun.refuse_another(plan, self._place)
        return plan, self._jobs(plan)

    def _refuse_copies(self) -> None:
        """With a snapshot, what is written relative to the directory lands in the copy, where no merge looks."""
        if not self._rules.settings.snapshot:
            return
        for pattern in self._given.patterns:
            path = pattern.replace("{output_dir}", self._given.output_dir or "")
            if not os.path.isabs(os.path.expanduser(path)):
                hint = "write to an absolute path, and name that"
                raise GpuschedError("with --snapshot this lies in the copy", where=f"--merge {pattern}", hint=hint)

    def _look_at_formats(self) -> None:
        """Refuse or tell now what the merge would refuse when all the work is done."""
        from importlib.util import find_spec

        from gpusched.shards.jobs import merge_needs, refuse_one_name

        output = None if self._given.merge is None else self._given.merge.output
        if output is not None and os.path.isdir(output):
            refuse_one_name(self._given.patterns, output)
            output = None
        needs = merge_needs(self._given.patterns, output)
        for library in sorted(needs):
            if find_spec(library) is None:
                say(f"the merge will need {library}, and {sys.executable} has none; install it there before the end")

    def _what_was_asked(self) -> dict[str, Any]:
        from dataclasses import asdict

        given = self._given
        return {
            **asdict(given.wish),
            "total": given.total,
            "weights": given.weights,
            "digest": self._items.digest,
            "cwd": os.getcwd(),
        }

    def _order(self) -> list[int] | None:
        """The items in the order of the line; None: as they are given."""
        from gpusched.shards.split import shuffled

        seed = self._given.wish.shuffle
        return None if seed is None else shuffled(self._items.count, seed)

    def _weights(self) -> list[float] | None:
        if self._given.weights is None:
            return None
        weights, order = self._items.weights(self._given.weights), self._order()
        return weights if order is None else [weights[item] for item in order]

    def _jobs(self, plan: ShardPlan) -> JobFile:
        from gpusched.core.jobs.reconcile import identity
        from gpusched.host.queue.shard_files import PLAN
        from gpusched.shards import jobs as told

        settings = self._rules.settings
        options = {"force": self._force, "strip_gpu_env": settings.strip_gpu_env, "gpus": settings.gpus_per_job}
        command = None
        if plan.merge is not None:
            command = told.merge_command(sys.executable, f"{self._place.path}/{PLAN}", plan.merge.output)
        directory = self._given.output_dir or ""
        jobs = told.jobs(plan, self._given.line, directory, command, options=options)
        if command is not None and not jobs.errors:
            again = self._begun.merges(plan, identity(jobs.specs[-1]), retry_failed=self._asked.retry_failed)
            jobs = replace(jobs, specs=(*jobs.specs[:-1], replace(jobs.specs[-1], occurrence=again)))
        return accept(jobs, "shard", self._asked)

    # ---- what comes of it ----

    @contextmanager
    def _prepare(self, queue: Queue, plan: ShardPlan) -> Iterator[None]:
        """Write what the shards read and the merge follows; an interruption at any point leaves nothing wrong.

        From the last look at what there is until the jobs are submitted, no other start of this queue does the same.
        """
        from gpusched.host import locks

        place = queue.queue_dir
        lock = locks.take_file(f"{place.state}/{LOCK}", 0o600) if place.path == self._place.path else None
        if lock is None:
            raise GpuschedError("another start is just making its plan", where=place.path, hint="try again in a moment")
        try:
            self._write(queue, plan, self._settle(queue, plan))
            yield
        finally:
            os.close(lock)

    def _settle(self, queue: Queue, plan: ShardPlan) -> ShardPlan | None:
        """The plan before this one, once no shard of another split runs, or can be started by a live dispatcher."""
        with queue.store.transaction():
            begun = EarlierRun(queue.queue_dir, self._given.owner)
            begun.refuse_another(plan, queue.queue_dir)
            if begun.split != plan.split_id:
                submission.submit(queue.store, [], self._rules.needs, queues.now())
                meta_table.write(queue.store, SPLIT, plan.split_id)
        return begun.plan

    def _write(self, queue: Queue, plan: ShardPlan, before: ShardPlan | None) -> None:
        from gpusched.core.jobs.lifecycle import CAUSE_FAILURES
        from gpusched.core.model import JobState
        from gpusched.host.queue import shard_files as files
        from gpusched.shards.plan import TAG, document

        same = before is not None and before.ways == plan.ways
        created_at = before.created_at if before is not None and same else queues.now()
        if not same:
            files.remove_plan(queue.queue_dir.path)
        if plan.shards[0].items_file is not None:
            order = self._order()
            own = (
                (str(s.items_file), plan.positions(s) if order is None else [order[at] for at in plan.positions(s)])
                for s in plan.shards
            )
            files.write_items(self._items, f"{queue.queue_dir.path}/{files.DIRECTORY}", own, missing=same)
        _make_directory(self._given.output_dir, "--output-dir")
        if plan.merge is not None:
            _make_directory(os.path.dirname(plan.merge.output or ""), "the directory of --merge-output")
        files.write_plan(queue.queue_dir.path, document(replace(plan, created_at=created_at)))
        if self._asked.retry_failed:
            for job in job_table.jobs(queue.store, [JobState.HELD]):
                if job.cause == CAUSE_FAILURES and TAG in job.tags:
                    job_table.release(queue.store, job.id)


def _open_items(given: ShardRequest) -> Items:
    from gpusched.host.queue.shard_items import NumberItems, open_items

    return NumberItems(given.total or 0) if given.items is None else open_items(given.items)


def _make_directory(path: str | None, what: str) -> None:
    try:
        if path:
            os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise GpuschedError(f"cannot be made: {error.strerror}", where=f"{what} {path}") from None


def _slots(rules: SubmitOptions, known: tuple[Device, ...], *, needed: bool) -> int:
    """How many shards can run at once. Raises GpuschedError for GPUs that are not there."""
    from gpusched.operations.devices import check_devices

    settings = rules.settings
    if not settings.gpus_per_job:
        return settings.cpu_jobs
    if not known:
        if needed:
            raise GpuschedError(
                "the dispatcher of this queue has not looked at the GPUs yet", hint="say how many: --num-shards N"
            )
        return 1
    chosen = check_devices(settings, known)
    return settings.jobs_at_once(len(chosen.uuids))
