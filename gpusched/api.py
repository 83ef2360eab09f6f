"""The library's public face. Prints nothing.

A queue that stays, and the jobs in it:

    import gpusched

    queue = gpusched.Queue("night")  # made if it is not there; Queue() is your default one
    job = queue.submit("python train.py --seed 1", mem="18G", name="seed1")
    jobs = queue.map("python train.py --lr {lr}", lr=[1e-3, 1e-4])
    queue.run(max_gpus=2)  # dispatch here until all have ended; or queue.start(), in the background
    print(job.state, job.outcome, job.log())

A list, as `gpusched run` runs it:

    exit_code = gpusched.run("commands.txt", max_gpus=2)
    print(gpusched.dry_run("commands.txt", max_gpus=2).reasons)

A GPU for a block of Python:

    with gpusched.gpu(mem="10G") as device:
        print(device.index, device.uuid, device.name)

Every refusal is a `gpusched.common.errors.GpuschedError`, whose text says what to do.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusched.common.errors import EXIT_TIMED_OUT, GpuschedError
from gpusched.config.layers import load
from gpusched.core.model import AttemptRow, Attributes, JobRow, Outcome
from gpusched.dispatcher import Observer
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.lists.attributes import KEYS, key_fault, make, parse_value
from gpusched.lists.jobfile import JobFile
from gpusched.lists.submit import JobSource, SubmitOptions, parse_command, read_source, refused
from gpusched.operations.box.devices import open_devices as open_devices
from gpusched.operations.change import requests
from gpusched.operations.interactive.block import gpu as gpu
from gpusched.operations.look.explain import explain
from gpusched.operations.look.logs import LogChoice, copy_log
from gpusched.operations.look.wait import wait_for
from gpusched.operations.queues import ignore
from gpusched.operations.run import dry_run as dry_runs
from gpusched.operations.run import start, submit
from gpusched.operations.run.background import start_as_stated
from gpusched.operations.run.list_queue import find_queue_dir, make_queue_dir, read_jobs
from gpusched.operations.run.run import RunSession, run_jobs

if TYPE_CHECKING:
    from gpusched.esd.config import EsdConfig as EsdConfig
    from gpusched.esd.experiment import EsdExperiment as EsdExperiment
    from gpusched.shards.merge_options import MergeOptions as MergeOptions
    from gpusched.shards.plan import SplitOptions as SplitOptions
    from gpusched.shards.request import ShardRequest as ShardRequest
    from gpusched.shards.split import shard_range as shard_range
    from gpusched.shards.split import split_range as split_range
    from gpusched.shards.start import run_shards as run_shards

_FEATURES = {
    "EsdConfig": "gpusched.esd.config",
    "EsdExperiment": "gpusched.esd.experiment",
    "MergeOptions": "gpusched.shards.merge_options",
    "ShardRequest": "gpusched.shards.request",
    "SplitOptions": "gpusched.shards.plan",
    "run_shards": "gpusched.shards.start",
    "shard_range": "gpusched.shards.split",
    "split_range": "gpusched.shards.split",
}
_WISHES = ("hold", "begin_at", "once", "export")


def run(
    path: str,
    *,
    force: bool = False,
    retry_failed: bool = False,
    observer: Observer | None = None,
    **settings: object,
) -> int:
    """Run the jobs of a file until all have ended, as `gpusched run` does, and return the exit code.

    `settings` are those of `gpusched config`, such as max_gpus=2. Raises GpuschedError where the verb would refuse.
    """
    source = _read_list(path)
    queue_dir, options, jobs = read_jobs(source, load(settings), force=force, retry_failed=retry_failed)
    with open_devices(options.settings, options.gpus_wanted(jobs.specs)) as devices:
        devices.check(jobs, options, queue_dir)
        return run_jobs(path, jobs, options, devices, session=RunSession(watch=lambda queue: nullcontext(observer)))


def dry_run(path: str, *, force: bool = False, retry_failed: bool = False, **settings: object) -> dry_runs.DryRun:
    """Return the effect that `run` would have with the same arguments. Changes nothing."""
    source = _read_list(path)
    queue_dir, options, jobs = read_jobs(source, load(settings), force=force, retry_failed=retry_failed)
    return dry_runs.dry_run(queue_dir, jobs, options)


def _read_list(path: str) -> JobSource:
    try:
        return read_source(path)
    except OSError as error:
        hint = "it is a file of one shell command a line, or a YAML job file"
        raise GpuschedError(f"cannot be read: {error.strerror}", where=path, hint=hint) from None


# ---- a queue that stays ----------------------------------------------------------------------------


class Queue:
    """A queue of jobs: your default one, that of a name, or that of a list. Made if it is not there.

    It holds no open file: any number of them, in any process, may stand for one queue.
    """

    def __init__(self, name: str | None = None) -> None:
        """`name` is what `-q` takes: a name, or the directory of a queue. Raises GpuschedError if it is not unique.

        A name may be that of a list in another directory, if there is just one: `path` tells.
        """
        self._dir = submit.find_standing_queue(name, load().settings.state_dir)
        submit.make_queue(self._dir)

    @classmethod
    def for_file(cls, path: str) -> Queue:
        """Return the queue of a list, as `gpusched run` names it. Submits nothing: `gpusched.run(path)` does."""
        settings = load().settings
        return cls._of(make_queue_dir(path, settings) if os.path.exists(path) else find_queue_dir(path, settings))

    @classmethod
    def _of(cls, queue_dir: QueueDir) -> Queue:
        queue = cls.__new__(cls)
        queue._dir = queue_dir
        return queue

    def __repr__(self) -> str:
        return f"Queue({self.path!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Queue) and self._dir == other._dir

    def __hash__(self) -> int:
        return hash(self._dir)

    @property
    def name(self) -> str:
        return self._dir.name

    @property
    def path(self) -> str:
        """The directory of the queue, with its logs."""
        return self._dir.path

    # ---- its jobs ----

    def __iter__(self) -> Iterator[Job]:
        """Yield all jobs of the queue, by id."""
        with Store(self._dir.database) as store:
            ids = sorted(row.id for row in job_table.jobs(store))
        return (Job(self, job_id) for job_id in ids)

    def __getitem__(self, job: int | str) -> Job:
        """Return the job of this id or name. Raises KeyError if there is none."""
        with Store(self._dir.database) as store:
            known = store.scalar("SELECT id FROM jobs WHERE id = ?", (job,)) if isinstance(job, int) else None
            job_id = known if isinstance(job, int) else job_table.ids_by_name(store, [job]).get(job)
        if job_id is None:
            raise KeyError(job)
        return Job(self, int(job_id))

    def submit(self, command: str | Sequence[str], **wanted: Any) -> Job:
        """Add a job that runs `command`, a text for the shell or a sequence of arguments, and return it.

        `wanted` are the attributes of a job (name, tag, gpus, mem="18G", time="2h", prio, after, retries, cwd, items,
        gpu_model, alone=True, cpus, ram, env={"NAME": "value"}) and of a submission: hold=True, begin_at (epoch
        seconds), once="key" (return the job of this key if there is one), export="all" | "none" | "NAME,…". `after`
        takes jobs, ids, names and tags, one or several. Raises GpuschedError for what cannot be right.
        """
        text = command if isinstance(command, str) else shlex.join(command)
        return self._add(lambda options: parse_command(text, options), "command", wanted)[0]

    def map(self, command: str, **wanted: Any) -> list[Job]:
        """Add a job for each combination of values, the last parameter fastest, and return them in this order.

        Each `{name}` of the command that is a keyword here is a parameter, whose argument has its values; the other
        keywords are as for `submit`. Values are quoted for the shell.
        """
        names = [name for name in wanted if re.search(rf"(?<!\$)\{{{re.escape(name)}\}}", command)]
        values = {name: list(map(str, wanted.pop(name))) for name in names}

        def parse(options: SubmitOptions) -> JobFile:
            from gpusched.lists.maker import from_command
            from gpusched.lists.parameters import Axis

            axes = [Axis((name,), tuple((each,) for each in some)) for name, some in values.items()]
            return from_command(command, axes, **options.reading)

        return self._add(parse, "command", wanted)

    def submit_file(self, path: str, **wanted: Any) -> list[Job]:
        """Add the jobs of a list, each a new one, and return them in its order. `wanted` is for all of them."""
        source = _read_list(path)
        return self._add(source.parse, JobSource(path).name, wanted)

    def _add(self, parse: Callable[[SubmitOptions], JobFile], name: str, wanted: Mapping[str, Any]) -> list[Job]:
        options = SubmitOptions(load().settings, os.fsencode(os.getcwd()))
        wishes = submit.Wishes(
            _attributes({key: value for key, value in wanted.items() if key not in _WISHES}),
            **{key: value for key, value in wanted.items() if key in _WISHES},
        )
        added = submit.add_jobs(self._dir, refused(parse(options), name), options, wishes)
        return [Job(self, job_id) for job_id in added.ids]

    def frame(self) -> Any:
        """Return a data frame (of pandas, or else of polars) with a row for each attempt, and for jobs without one.

        Raises GpuschedError where neither is installed.
        """
        from gpusched.operations.look.frame import read_frame

        return read_frame(self._dir)

    # ---- its dispatcher ----

    def run(self, observer: Observer | None = None, **settings: object) -> int:
        """Dispatch the queue here until all its jobs have ended, and return the exit code of `gpusched run`.

        `settings` are those of `gpusched config`, such as max_gpus=2. The code is 75 if another dispatcher works on it.
        """
        session = RunSession(watch=lambda queue: nullcontext(observer))
        return start.dispatch_standing(self._dir, load(settings), session, stays=False)

    def start(self, **settings: object) -> int:
        """Have the queue dispatched in the background, and return the pid of its dispatcher.

        If one works on it already, that one goes on as it is. It leaves after `idle_exit` without a job.
        """
        return start_as_stated(self._dir, load(settings), ignore) or self._dir.dispatcher() or 0

    def wait(self, *jobs: Job, timeout: float | None = None) -> None:
        """Wait until these jobs, or all that the queue has now, have ended.

        Raises TimeoutError after `timeout` seconds, and GpuschedError when no dispatcher works on the queue.
        """
        ids = [str(job.id) for job in jobs]
        if wait_for(self._dir, ids, timeout_s=timeout, needs_dispatcher=True).code == EXIT_TIMED_OUT:
            raise TimeoutError(f"the jobs have not ended after {timeout:g} s")


@dataclass(frozen=True, repr=False)
class Job:
    """A job of a queue. Its properties are read anew each time."""

    queue: Queue
    id: int

    def __repr__(self) -> str:
        return f"Job({self.id}, {self.state}, {os.fsdecode(self._row.command)[:60]!r})"

    @property
    def _dir(self) -> QueueDir:
        return self.queue._dir

    @property
    def _row(self) -> JobRow:
        with Store(self._dir.database) as store:
            return job_table.get(store, self.id)

    @property
    def _attempts(self) -> list[AttemptRow]:
        with Store(self._dir.database) as store:
            return attempt_table.attempts(store, self.id)

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def command(self) -> str:
        return os.fsdecode(self._row.command)

    @property
    def state(self) -> str:
        """The state: queued, held, running, succeeded, failed or cancelled."""
        return self._row.state.value

    @property
    def outcome(self) -> Outcome | None:
        """The end of the newest attempt that has ended (kind, exit_code, signal, cause, note); None if none has."""
        return next((each.outcome for each in reversed(self._attempts) if each.outcome is not None), None)

    @property
    def log_path(self) -> str | None:
        """The file with what the newest attempt has written; None before the first one."""
        attempts = self._attempts
        return os.path.join(self._dir.path, attempts[-1].log) if attempts else None

    def log(self) -> str:
        """Return what the newest attempt has written so far; empty before the first one."""
        out = io.BytesIO()
        if self._attempts:
            copy_log(self._dir, str(self.id), out, LogChoice())
        return out.getvalue().decode("utf-8", "replace")

    def explain(self) -> str:
        """Return why the job waits, or what it does; empty once it has ended."""
        return "; ".join(explain(self._dir, str(self.id)).current)

    def wait(self, timeout: float | None = None) -> Job:
        """Wait until the job has ended, and return it. Raises as Queue.wait."""
        self.queue.wait(self, timeout=timeout)
        return self

    def cancel(self) -> None:
        """Cancel it: a waiting job at once, a running one by its dispatcher."""
        requests.cancel(self._dir, [str(self.id)])

    def requeue(self) -> None:
        """Queue it again, though it has ended, with all its tries. Raises GpuschedError if it has not ended."""
        _changed(requests.requeue(self._dir, [str(self.id)], again=True))

    def hold(self) -> None:
        """Keep it from starting. Raises GpuschedError if it does not wait."""
        _changed(requests.hold(self._dir, [str(self.id)]))

    def release(self) -> None:
        """Let it start again. Raises GpuschedError if it is not held."""
        _changed(requests.release(self._dir, [str(self.id)]))


def _changed(report: requests.ChangeReport) -> None:
    """Raise GpuschedError for a change that was refused."""
    if report.refused:
        raise GpuschedError("; ".join(f"job {ids[0]} {text}" for text, ids in report.jobs.items()))


def _attributes(wanted: Mapping[str, Any]) -> Attributes:
    """Return the attributes of these keywords. Raises GpuschedError for values that cannot be right."""
    values: dict[str, Any] = {}
    for name, value in wanted.items():
        key = name.replace("_", "-")
        if key == "env":
            pairs = {f"env.{variable}": os.fsencode(text) for variable, text in value.items()}
            wrong = [variable for variable in pairs if key_fault(variable) is not None]
            values |= pairs
        else:
            wrong = [] if key in KEYS else [name]
        if wrong:
            hint = f"known: {', '.join([*KEYS, 'env', *_WISHES])}".replace("-", "_")
            raise GpuschedError(f"a job has no attribute {wrong[0]!r}", hint=hint)
        if key != "env" and value is not None:
            values[key] = _parsed(key, value)
    return make(values)


def _parsed(key: str, value: Any) -> object:
    is_several = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    words = [str(each.id) if isinstance(each, Job) else str(each) for each in (value if is_several else [value])]
    try:
        return parse_value(key, os.fsencode(",".join(words)))
    except ValueError as error:
        raise GpuschedError(f"{key} is {value!r}, but must be {error}") from None


def __getattr__(name: str) -> object:
    """Import a name of a feature when it is first used."""
    if name in _FEATURES:
        return getattr(importlib.import_module(_FEATURES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
