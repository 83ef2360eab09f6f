"""One start of a sharded script: the plan, its jobs, and the files that they need. Prints nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace

from gpusched.common.errors import GpuschedError
from gpusched.common.item_files import Items, NumberItems, open_items
from gpusched.common.merge_record import PLAN
from gpusched.common.text import first_few
from gpusched.config.layers import LoadedSettings, load, with_defaults
from gpusched.core.jobs.reconcile import identity
from gpusched.core.model import Device
from gpusched.lists.joblist import JobFile
from gpusched.lists.submit import refused
from gpusched.operations.box.devices import BoxDevices, check_devices, open_devices
from gpusched.operations.run.list_queue import find_queue_dir, refuse_unmet, submit_options
from gpusched.operations.run.run import QUIET_SESSION, RunSession, ignore, run_jobs
from gpusched.shards.command import check_command
from gpusched.shards.earlier_run import read_earlier_run
from gpusched.shards.jobs import make_jobs, merge_command
from gpusched.shards.outputs import check_formats, output_matcher, with_outputs
from gpusched.shards.plan import ShardPlan
from gpusched.shards.prepare import PlannedShards, prepare_queue
from gpusched.shards.request import ShardRequest
from gpusched.shards.sizing import count_shards, make_plan


def run_shards(
    request: ShardRequest,
    *,
    force: bool = False,
    retry_failed: bool = False,
    session: RunSession = QUIET_SESSION,
    **settings: object,
) -> int:
    """Run a script in shards until all have ended, as `gpusched shard` does, and return the exit code.

    `settings` are those of `gpusched config`, such as max_gpus=2. Raises GpuschedError where the verb would refuse.
    """
    loaded = with_defaults(load(settings), "shard")
    start = ShardStart(request, loaded, force=force, retry_failed=retry_failed, notify=session.notify)
    with start.open_devices() as devices:
        return start.run(start.plan(devices), devices, session)


class ShardStart:
    """One start of a sharded script. An earlier plan of the same split is kept."""

    def __init__(
        self,
        request: ShardRequest,
        loaded: LoadedSettings,
        *,
        force: bool = False,
        retry_failed: bool = False,
        notify: Callable[[str], None] = ignore,
    ) -> None:
        """Read the items and the queue. `notify` gets messages for people, one line each."""
        request.check()
        self._request = request
        self._notify = notify
        self._queue_dir = find_queue_dir(request, loaded.settings)
        self._options = submit_options(self._queue_dir, loaded, force=force, retry_failed=retry_failed)
        self._items = _open_items(request)
        for text in first_few(self._items.notes):
            notify(f"--items: {text}")
        self._earlier = read_earlier_run(self._queue_dir, request.owner)

    def open_devices(self) -> BoxDevices:
        """Return the GPUs that the jobs may use, as a context manager."""
        return open_devices(self._options.settings)

    def plan(self, devices: BoxDevices) -> PlannedShards:
        """Make the plan and its jobs; nothing is changed yet. Raises GpuschedError for anything that cannot work."""
        plan = self._with_files(self._split(devices.look(self._queue_dir) or ()))
        self._earlier.refuse_other_split(plan, self._queue_dir)
        jobs = self._jobs(plan)
        refuse_unmet(jobs, self._queue_dir, "shard")
        devices.check(jobs, self._options, self._queue_dir)
        return PlannedShards(self._queue_dir, plan, jobs, self._earlier.states)

    def run(self, planned: PlannedShards, devices: BoxDevices, session: RunSession = QUIET_SESSION) -> int:
        """Run the jobs until all have ended, and return the exit code."""
        return run_jobs(
            self._request,
            planned.jobs,
            self._options,
            devices,
            prepare=lambda queue: prepare_queue(queue, planned, self._request, self._items, self._options),
            session=session,
        )

    # ---- the plan ----

    def _split(self, devices: tuple[Device, ...]) -> ShardPlan:
        """Split the items, or take the earlier split if it has the same inputs."""
        request, items, before = self._request, self._items, self._earlier.plan
        inputs = request.split_inputs(items.digest)
        if before is not None and before.inputs == inputs:
            shards = tuple(replace(shard, items_file=None, outputs=()) for shard in before.shards)
            plan = replace(before, shards=shards)
        else:
            if request.items is not None and items.count < 1:
                raise GpuschedError("it has no items", where=f"--items {request.items}")
            slots = self._slots(devices)
            n, note = count_shards(items.count, request.split, slots)
            if note:
                self._notify(note)
            plan = make_plan(items.count, request.split, n, slots)
        return replace(plan, items=items.path, command=request.line, merge=request.merge_in_full, inputs=inputs)

    def _slots(self, devices: tuple[Device, ...]) -> int:
        """Return how many shards can run at once. Raises GpuschedError for GPUs that do not exist."""
        settings, split = self._options.settings, self._request.split
        if not settings.gpus_per_job:
            return settings.cpu_jobs
        if devices:
            return settings.jobs_at_once(len(check_devices(settings, devices).uuids))
        if split.num_shards or split.shard_size:
            return 1
        problem = "the dispatcher of this queue has not looked at the GPUs yet"
        raise GpuschedError(problem, hint="use --num-shards N, or try again in a moment")

    def _with_files(self, plan: ShardPlan) -> ShardPlan:
        """Return the plan with the files that its shards read and write."""
        request = self._request
        names = check_command(request.line, plan, from_items=request.items is not None)
        is_used = "output_dir" in names or any("{output_dir}" in pattern for pattern in request.patterns)
        if is_used and request.output_dir is None:
            raise GpuschedError("{output_dir} needs --output-dir")
        if "items_file" in names:
            paths = (f"{self._queue_dir.path}/items/{s.suffix}{self._items.suffix}" for s in plan.shards)
            shards = (replace(shard, items_file=path) for shard, path in zip(plan.shards, paths, strict=True))
            plan = replace(plan, shards=tuple(shards))
        self._refuse_snapshot_paths()
        output = None if plan.merge is None else plan.merge.output
        check_formats(request.patterns, None if output and os.path.isdir(output) else output)
        return with_outputs(plan, request.patterns, request.output_dir or "", os.getcwd())

    def _refuse_snapshot_paths(self) -> None:
        """With --snapshot, raise GpuschedError for relative outputs: they would be written to the copy."""
        if not self._options.settings.snapshot:
            return
        for pattern in self._request.patterns:
            path = pattern.replace("{output_dir}", self._request.output_dir or "")
            if not os.path.isabs(os.path.expanduser(path)):
                problem = "with --snapshot a relative path lies in the copied work tree, where the merge does not look"
                raise GpuschedError(problem, where=f"--merge {pattern}", hint="write to an absolute path")

    def _jobs(self, plan: ShardPlan) -> JobFile:
        settings = self._options.settings
        options = {"force": self._options.force, "strip_gpu_env": settings.strip_gpu_env, "gpus": settings.gpus_per_job}
        merge = None
        if plan.merge is not None:
            merge = merge_command(sys.executable, f"{self._queue_dir.path}/{PLAN}", plan.merge.output)
        jobs = refused(
            make_jobs(plan, self._request.line, self._request.output_dir or "", merge, options=options), "shard"
        )
        if merge is None:
            return jobs
        *shards, last = jobs.specs
        retry_failed = self._options.retry_failed
        occurrence = self._earlier.merge_occurrence(plan, identity(last), retry_failed=retry_failed)
        return jobs._replace(specs=(*shards, last._replace(occurrence=occurrence)))


def _open_items(request: ShardRequest) -> Items:
    if request.items is None:
        return NumberItems(request.total or 0)
    output = request.merge_in_full.output if request.merge_in_full is not None else None
    return open_items(request.items, output_matcher(request.patterns, request.output_dir or "", output, os.getcwd()))
