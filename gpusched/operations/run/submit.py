"""Jobs that are submitted by themselves: to the default queue or another one, which need not exist. Starts nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.core.jobs import environment
from gpusched.core.jobs.job import NO_ATTRIBUTES, Attributes, JobSpec
from gpusched.core.jobs.reconcile import identity
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, dispatch_table, job_table, meta_table, submission
from gpusched.lists.attributes import with_defaults
from gpusched.lists.joblist import JobFile
from gpusched.lists.submit import SubmitOptions, find_impossible, refuse_nodes
from gpusched.operations.run.list_queue import with_dirs

OLD_SEEN_WITHIN_S = 90.0  # a dispatcher of version 0.1 says every 30 seconds that it is there


class Wishes(NamedTuple):
    """The wishes of a submission for its jobs, beside what each of them states."""

    attributes: Attributes = NO_ATTRIBUTES
    hold: bool = False
    begin_at: float | None = None  # the jobs start no earlier
    once: str = ""  # add the job only if no job of this key is there
    source: str = ""  # a list: each of its jobs is added once, however often the list is
    export: str = "all"  # all | none | NAME,…: the part of the environment that the jobs get


class Added(NamedTuple):
    """A submission: the queue, the id of each job, and those ids that were there before (`once`).

    `hindrances`: what will keep the jobs from starting until somebody acts, as far as it is known yet.
    """

    queue_dir: QueueDir
    ids: tuple[int, ...]
    earlier: tuple[int, ...] = ()
    is_new_queue: bool = False
    hindrances: tuple[str, ...] = ()


def find_standing_queue(name: str | None, state_dir: str | None = None) -> QueueDir:
    """Return the queue that a submission to `name` goes to, made or not; without a name, this user's default one.

    A queue that is there already is meant first, as by -q of every verb. Raises GpuschedError where that is not unique.
    """
    if name is None:
        return queue_dirs.locate(queue_dirs.standing_path(queue_dirs.DEFAULT_NAME), state_dir)
    from gpusched.operations import queues

    if (there := queues.existing_queue(name, state_dir)) is not None:
        return there
    path = os.path.abspath(name) if os.sep in name else queue_dirs.standing_path(name)
    return queue_dirs.locate(path, state_dir)


def refuse_without_cluster(queue_dir: QueueDir, cluster: str) -> None:
    """Raise GpuschedError if this queue is not that of a cluster."""
    if queue_dir.exists():
        with Store(queue_dir.database, read_only=True) as store:
            if meta_table.cluster_of(store):
                return
    hint = "`gpusched cluster up HOSTS.yaml` starts one; jobs are given to it on the box of its head"
    raise GpuschedError(f"there is no cluster {cluster!r} here", hint=hint)


def make_queue(queue_dir: QueueDir) -> None:
    """Make a queue if it is not there, and put it first on this user's list."""
    _open_made(queue_dir).close()


def _open_made(queue_dir: QueueDir) -> Store:
    queue_dirs.prepare(queue_dir)
    queue_dirs.remember(queue_dir)
    return Store(queue_dir.database, create=True)


def add_jobs(
    queue_dir: QueueDir,
    jobs: JobFile,
    options: SubmitOptions,
    wishes: Wishes,
    environ: Mapping[bytes, bytes] | None = None,
) -> Added:
    """Add these jobs to a queue, which is made if it is not there; its dispatcher, if any, takes them at once.

    Raises GpuschedError, and adds nothing, for jobs that cannot be right.
    """
    specs = _with_wishes(jobs.specs, wishes)
    is_new = not queue_dir.exists()
    content = environment.exported(os.environb if environ is None else environ, wishes.export)
    with _open_made(queue_dir) as store:
        if not meta_table.cluster_of(store):
            refuse_nodes(specs)
        elif wishes.export == "all":
            content = b""  # each node has its own variables, and those that the job states
        options = replace(with_dirs(options, queue_dir), environment=content, begin_at=wishes.begin_at or 0.0)
        options.look_around(specs)
        now = time.time()
        with store.transaction():
            _refuse_old_dispatcher(queue_dir, store, now)
            added = submission.add(store, specs, options.needs, now, once=bool(wishes.once or wishes.source))
            for job_id, is_added in added if wishes.hold else ():
                if is_added:
                    job_table.hold(store, job_id)
            if meta_table.read(store, "on_dep_fail") is None:
                meta_table.write(store, "on_dep_fail", options.settings.on_dep_fail)
        is_paused = meta_table.is_paused(store)
    queue_dir.ring()
    ids = tuple(job_id for job_id, _ in added)
    hindrances = _find_hindrances(queue_dir, specs, ids, options, is_paused=is_paused)
    earlier = tuple(job_id for job_id, is_added in added if not is_added)
    return Added(queue_dir, ids, earlier, is_new, hindrances)


def _find_hindrances(
    queue_dir: QueueDir, specs: Sequence[JobSpec], ids: Sequence[int], options: SubmitOptions, *, is_paused: bool
) -> tuple[str, ...]:
    """Return that the queue is paused, and which jobs the GPUs that its dispatcher has published can never serve."""
    if is_paused:
        from gpusched.core.plan.board import paused_text  # not needed by most submissions, as all below

        return (paused_text(queue_dir.name),)
    if all(spec.attributes is NO_ATTRIBUTES for spec in specs) or queue_dir.dispatcher() is None:
        return ()
    from gpusched.host.queue import published
    from gpusched.views.changes import change_lines

    if (board := published.read_board(queue_dir)) is None:
        return ()
    of_key, in_vain = dict(zip((spec.key for spec in specs), ids, strict=True)), dict[str, list[int]]()
    devices = [item.device for item in board.devices]
    for spec, why in find_impossible(specs, options, devices, board.limits):
        in_vain.setdefault(f"waits in vain: {why}", []).append(of_key[spec.key])
    return tuple(change_lines(in_vain))


def _refuse_old_dispatcher(queue_dir: QueueDir, store: Store, now: float) -> None:
    """Raise GpuschedError if a dispatcher of version 0.1 works on the queue: it would run the jobs, but elsewhere."""
    version, seen_at = dispatch_table.newest(store)
    if not version and now - seen_at < OLD_SEEN_WITHIN_S and (pid := queue_dir.dispatcher()) is not None:
        raise GpuschedError(
            f"is being dispatched by gpusched 0.1 (pid {pid}), which knows nothing of submissions",
            where=queue_dir.path,
            hint=f"kill -QUIT {pid} has it leave, and its jobs go on; then submit again",
            exit_code=EXIT_CANNOT_WORK,
        )


def _with_wishes(specs: tuple[JobSpec, ...], wishes: Wishes) -> tuple[JobSpec, ...]:
    """Return the jobs with what they do not state themselves, each with a key of its own."""
    for word, is_stated in {"--name": wishes.attributes.name, "--once": wishes.once}.items():
        if is_stated and len(specs) != 1:
            problem = f"is for a single job, and these are {len(specs)}"
            raise GpuschedError(problem, where=word, hint="a list states name= in its lines")
    return tuple(
        spec._replace(
            occurrence=1, attributes=with_defaults(spec.attributes, wishes.attributes), key=_key(spec, wishes)
        )
        for spec in specs
    )


def _key(spec: JobSpec, wishes: Wishes) -> bytes:
    """Return the key of a job: one of its own, unless a job that is there already may be meant."""
    if wishes.once:
        return b"once " + os.fsencode(wishes.once)
    if wishes.source:
        return b"list %b %b %d" % (os.fsencode(wishes.source), identity(spec), spec.occurrence)
    return os.urandom(16)
