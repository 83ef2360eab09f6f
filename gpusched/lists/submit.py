"""Text -> jobs in the queue: parse, refuse or warn, reconcile, store. Starts nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from gpusched.common.digests import blake2b
from gpusched.common.errors import GpuschedError
from gpusched.common.processes import memory_bytes
from gpusched.common.quantities import AUTO_MEMORY, parse_size
from gpusched.config.settings import Settings
from gpusched.core.jobs.job import MIB, NO_ATTRIBUTES, Attributes, JobSpec, Requirements, round_budget
from gpusched.core.jobs.reconcile import QueueChange
from gpusched.host.store import Store, submission
from gpusched.lists.finding_table import fault
from gpusched.lists.findings import Finding, render_findings
from gpusched.lists.joblist import JobFile, is_plain

if TYPE_CHECKING:
    from gpusched.core.model import Device
    from gpusched.core.plan.availability import Criteria
    from gpusched.core.plan.snapshot import Limits
    from gpusched.host.code.job_dirs import JobDirs

SHOWN_IMPOSSIBLE = 5
_YAML = (".yaml", ".yml")
_AS_STATED = (  # attributes that are needs as they are
    *("prio", "name", "tags", "gpu_model", "env", "items", "cpus", "ram_bytes", "node", "node_tag", "over_nodes"),
)


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """The options of one submission: how the text of a list is read, and what each of its jobs needs."""

    settings: Settings
    cwd: bytes
    force: bool = False
    retry_failed: bool = False
    dirs: JobDirs | None = None  # the directories in which the jobs run, and their commits
    environment: bytes = b""  # of the submission; empty: the jobs get that of the dispatcher
    begin_at: float = 0.0  # the jobs start no earlier

    @property
    def reading(self) -> dict[str, Any]:
        """The options of the parsers."""
        settings = self.settings
        return {"force": self.force, "strip_gpu_env": settings.strip_gpu_env, "gpus": settings.gpus_per_job}

    @property
    def limits(self) -> Limits:
        """The share of the box that the queue may take."""
        from gpusched.core.plan.snapshot import Limits

        s = self.settings
        return Limits(
            s.gpus_at_once,
            s.cpu_jobs,
            s.max_jobs_per_gpu,
            s.tag_limits,
            s.gpu_strategy,
            max_bypass_s=s.max_bypass,
            cpus=s.cpus or len(os.sched_getaffinity(0)),
            ram_bytes=parse_size(s.ram) if s.ram else memory_bytes() * 9 // 10,
            tag_mem=s.tag_mem_bytes,
            safety_factor=s.safety_factor,
            user_gpus=s.max_gpus_per_user or 0,
        )

    def gpus_wanted(self, specs: Sequence[JobSpec]) -> int:
        """Return the GPUs that the box must have for a job, by the options alone; 0: no job wants any."""
        stated = {spec.attributes.gpus for spec in specs}
        if not specs or (None in stated and self.settings.gpus_per_job):
            return self.settings.gpus_per_job
        return int(any(stated))

    def needs(self, spec: JobSpec) -> Requirements:
        """Return what this job needs: by its own attributes, else by the settings."""
        own, settings = spec.attributes, self.settings
        stated = self.directory(spec)
        gpus = settings.gpus_per_job if own.gpus is None else own.gpus
        mem_bytes = own.mem_bytes or (settings.mem_bytes if gpus else 0)
        cwd, git = (stated, "") if self.dirs is None else self.dirs.resolve(stated)
        return Requirements(
            gpus=gpus,
            time_limit_s=settings.time_limit if own.time_limit_s is None else own.time_limit_s,
            retries=settings.retries if own.retries is None else own.retries,
            cwd=cwd,
            mem_bytes=round_budget(mem_bytes),
            stated_mem_bytes=mem_bytes,
            git=git,
            alone=bool(own.alone and gpus),
            limited_tags=tuple(tag for tag in own.tags if tag in settings.tag_limits) if settings.tag_max_gpus else (),
            begin_at=self.begin_at,
            environment=self.environment,
            **{name: getattr(own, name) for name in _AS_STATED},
        )

    def directory(self, spec: JobSpec) -> bytes:
        """Return the working directory of this job, before a snapshot or a commit replaces it."""
        own = spec.attributes.cwd
        return self.cwd if own is None else os.path.join(self.cwd, own)

    def look_around(self, specs: Sequence[JobSpec]) -> None:
        """Do what may take long before these jobs are stored: ask git for their commits, copy their work tree."""
        if self.dirs is not None:
            self.dirs.prepare()
            for directory in {self.directory(spec) for spec in specs}:
                self.dirs.resolve(directory)


def criteria(settings: Settings, *, max_checks: int | None = None) -> Criteria:
    """Return when a device counts as free by these settings; `max_checks` replaces theirs."""
    from gpusched.core.plan.availability import Criteria

    return Criteria(
        threshold_bytes=settings.gpu_mem_threshold * MIB,
        max_checks=settings.max_checks if max_checks is None else max_checks,
        free_when=settings.free_when,
        allow_unreadable_memory=settings.allow_unreadable_memory,
        settle_timeout_s=settings.settle_timeout,
    )


class TypedCommand(Protocol):
    """A source of jobs that is typed on the command line, in place of a file."""

    @property
    def stem(self) -> str:
        """The name of its queue."""

    @property
    def owner(self) -> bytes:
        """The identity of its queue: a start with the same owner resumes it. Never equal to a file's path."""

    @property
    def words(self) -> list[str]:
        """The words to type, from the verb on, without the options that `run`, `shard` and `esd` share."""


class Sweep(NamedTuple):
    """A command with parameters, in place of a file. The values do not matter for which queue it has."""

    command: str
    parameters: tuple[str, ...] = ()  # NAME=VALUES
    each: str | None = None  # a CSV file

    @property
    def stem(self) -> str:
        return "sweep-" + blake2b(os.fsencode(self.command), digest_size=4).hexdigest()

    @property
    def owner(self) -> bytes:
        return b"-c " + os.fsencode(self.command)

    @property
    def words(self) -> list[str]:
        more = [word for parameter in self.parameters for word in ("-p", parameter)]
        return ["run", "-c", self.command, *more, *(["--each", self.each] if self.each else [])]


STREAM = "-"  # standard input, in place of a file
Source = str | TypedCommand  # a path, STREAM, or a typed command


def owner_of(source: Source) -> bytes:
    """Return the identity of a list, by which its queue knows it: an absolute path, "-", or that of a typed command."""
    if not isinstance(source, str):
        return source.owner
    return b"-" if source == STREAM else os.fsencode(os.path.abspath(source))


class JobSource(NamedTuple):
    """A list or a typed command, and what was read of it. `stat` is the state of the file when it was read."""

    source: str | Sweep
    data: bytes = b""
    stat: os.stat_result | None = None

    @property
    def name(self) -> str:
        """The name of the source in messages."""
        return self.source if isinstance(self.source, str) else "-c"

    @property
    def is_stream(self) -> bool:
        return self.source == STREAM

    @property
    def is_complete(self) -> bool:
        """True if a job that is no longer in the source is to be cancelled: never for a stream or a sweep."""
        return isinstance(self.source, str) and not self.is_stream

    def parse(self, options: SubmitOptions) -> JobFile:
        """Return the jobs, and all that is wrong with them."""
        if isinstance(self.source, str):
            return parse(self.data, options, self.source)
        return parse_sweep(self.source, options)


def read_source(path: str) -> JobSource:
    """Read a file of commands or a YAML job file. Raises OSError."""
    with open(path, "rb") as file:
        return JobSource(path, file.read(), os.fstat(file.fileno()))


def parse(data: bytes, options: SubmitOptions, where: str) -> JobFile:
    """Return the jobs of a list, and what is wrong with them. The suffix of `where` decides between text and YAML."""
    if where.lower().endswith(".py") and not options.force:
        return JobFile((), (fault("script", language="python").placed(1),))
    if not where.lower().endswith(_YAML):
        from gpusched.lists import jobfile

        return jobfile.parse(data, **options.reading)
    from gpusched.lists.yaml_jobs import parse as parse_yaml

    def read_beside(path: str) -> bytes:
        return read_source(os.path.join(os.path.dirname(where), os.path.expanduser(path))).data

    return parse_yaml(data, read_beside, **options.reading)


def parse_command(command: str, options: SubmitOptions) -> JobFile:
    """Return the job of one command, which may begin with attributes, and what is wrong with it."""
    text = command.strip().encode("utf-8", "surrogateescape")
    if is_plain(text):  # as most are: it needs no parser
        return JobFile((JobSpec(text, text, 1),))
    from gpusched.lists.maker import from_command

    return from_command(command, (), is_typed=False, **options.reading)


def parse_sweep(sweep: Sweep, options: SubmitOptions) -> JobFile:
    """Return the jobs of a command with parameters. Raises GpuschedError for parameters that cannot be read."""
    from gpusched.lists.maker import from_command
    from gpusched.lists.parameters import parameter, several, table

    axes = []
    notes: list[str] = []
    where = f"--each {sweep.each}"
    try:
        if sweep.each is not None:
            axes.append(table(read_source(sweep.each).data, notes))
        for text in sweep.parameters:
            where = f"-p {text}"
            axes.append(parameter(text))
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        is_table = where.startswith("--each")
        hint = "it is a CSV file whose first line names the columns" if is_table else "-p lr=1e-3,1e-4 or -p seed=0..4"
        raise GpuschedError(problem, where=where, hint=hint) from None
    jobs = from_command(sweep.command, axes, **options.reading)
    doubts = [fault("sweep.row", path=sweep.each, note=note) for note in notes]
    doubts += [
        fault("single", name=axis.names[0], value=axis.rows[0][0], form=form)
        for axis in axes
        if (form := several(axis))
    ]
    return jobs._replace(findings=(*(doubt.placed(1) for doubt in doubts), *jobs.findings))


def read(data: bytes, options: SubmitOptions, where: str) -> JobFile:
    """Return the jobs of a list. Raises GpuschedError with line and caret for lines that cannot be right."""
    return refused(parse(data, options, where), where)


def refused(jobs: JobFile, where: str) -> JobFile:
    """Return the jobs. Raises GpuschedError for lines that cannot be right."""
    if jobs.errors:
        raise refusal([finding for finding in jobs.findings if finding.severity != "hint"], where)
    return jobs


def refuse_empty(jobs: JobFile, where: str) -> JobFile:
    """Return the jobs. Raises GpuschedError if there is none."""
    if not jobs.specs:
        raise GpuschedError("holds no command", where=where, hint="one shell command a line; lines with # are skipped")
    return jobs


def refusal(findings: Sequence[Finding], where: str) -> GpuschedError:
    """Return one error for all findings of a list that is refused, the warnings among them too."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors[0].code == "encoding":  # no line of the file can be read
        return GpuschedError(errors[0].message, where=where)
    way_on = ", or use --force if this is meant" if all(finding.forceable for finding in errors) else ""
    hint = f"nothing of this list was submitted; correct it{way_on}"
    return GpuschedError(f"{count_wrong(findings)}\n{render_findings(findings, where)}", where=where, hint=hint)


def count_wrong(findings: Sequence[Finding]) -> str:
    """Return how many lines cannot be right, in words; empty if all can."""
    wrong = len({finding.line for finding in findings if finding.severity == "error"})
    return f"{'a line' if wrong == 1 else f'{wrong} lines'} cannot be right" if wrong else ""


def find_untagged(specs: Sequence[JobSpec], settings: Settings, wanted: Attributes | None = None) -> Sequence[Finding]:
    """Return a warning if jobs are to learn their memory from those of the same tag, and have none.

    `wanted` are attributes of those jobs that do not state them.
    """
    wanted = wanted or NO_ATTRIBUTES
    default = wanted.mem_bytes or (settings.mem_bytes if settings.gpus_per_job else 0)
    untagged = [spec for spec in specs if not (spec.attributes.tags or wanted.tags)]
    lines = [spec.line for spec in untagged if (spec.attributes.mem_bytes or default) == AUTO_MEMORY]
    jobs = "this job has its GPU" if len(lines) == 1 else f"these {len(lines)} jobs have each a GPU"
    return [fault("untagged", jobs=jobs).placed(lines[0])] if lines else []


def refuse_nodes(specs: Sequence[JobSpec]) -> None:
    """Raise GpuschedError for a job that asks for a node of a cluster: this queue is that of one box."""
    for spec in specs:
        if spec.attributes.node or spec.attributes.node_tag:
            hint = "`run --cluster NAME` and `submit -q NAME` give jobs to a cluster"
            raise GpuschedError(f"line {spec.line} asks for a node, and this queue is that of one box", hint=hint)


def find_impossible(
    specs: Sequence[JobSpec], options: SubmitOptions, devices: Sequence[Device], limits: Limits | None = None
) -> list[tuple[JobSpec, str]]:
    """Return the jobs that these allowed devices can never serve, and why not."""
    from gpusched.core.plan.feasibility import impossible

    limits = limits or options.limits
    stating = [spec for spec in specs if options.settings.mem or spec.attributes is not NO_ATTRIBUTES]
    judged = [(spec, impossible(options.needs(spec), limits, devices)) for spec in stating]
    return [(spec, why) for spec, why in judged if why]


def refuse_impossible(specs: Sequence[JobSpec], options: SubmitOptions, devices: Sequence[Device]) -> None:
    """Raise GpuschedError for jobs that these allowed devices can never serve."""
    refuse_nodes(specs)
    wrong = [f"\n  line {spec.line}: {why}" for spec, why in find_impossible(specs, options, devices)]
    if wrong:
        more = f"\n  … and {len(wrong) - SHOWN_IMPOSSIBLE} more" if len(wrong) > SHOWN_IMPOSSIBLE else ""
        text = "".join(["some jobs can never run here", *wrong[:SHOWN_IMPOSSIBLE], more])
        raise GpuschedError(text, hint="nothing of this list was submitted; `gpusched devices` shows the GPUs")


def submit(store: Store, specs: Sequence[JobSpec], options: SubmitOptions, now: float, **more: bool) -> QueueChange:
    """Make the queue hold these jobs; jobs that wait there already get the new options, order and line numbers.

    `more` are `complete` and `append`, see submission.submit.
    """
    return submission.submit(store, specs, options.needs, now, retry_failed=options.retry_failed, **more)
