"""Text -> jobs in the queue: parse, refuse or warn, reconcile, store. Starts nothing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings
from gpusched.core.jobs.reconcile import QueueChange
from gpusched.core.model import MIB, NO_ATTRIBUTES, Device, JobSpec, Requirements
from gpusched.core.plan.planner import round_budget
from gpusched.core.plan.snapshot import MARGIN_BYTES, Limits
from gpusched.host.code.job_dirs import JobDirs
from gpusched.host.store import Store, submission
from gpusched.lists import jobfile
from gpusched.lists.findings import Finding, render_findings
from gpusched.lists.jobfile import JobFile

SHOWN_IMPOSSIBLE = 5
_YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """How the text of a list is read, and what each of its jobs needs."""

    settings: Settings
    cwd: bytes
    force: bool = False
    retry_failed: bool = False
    dirs: JobDirs | None = None  # where jobs run instead of where they are submitted, and at which commit

    @property
    def limits(self) -> Limits:
        """How much of the box the queue takes."""
        s = self.settings
        return Limits(s.gpus_at_once, s.cpu_jobs, s.max_jobs_per_gpu, s.tag_limits, s.gpu_strategy, s.max_bypass)

    def gpus_wanted(self, specs: Sequence[JobSpec]) -> int:
        """GPUs that the box must have for a job, before it is looked at what each says; 0: none wants any."""
        stated = {spec.attributes.gpus for spec in specs}
        if not specs or (None in stated and self.settings.gpus_per_job):
            return self.settings.gpus_per_job
        return int(any(stated))

    def needs(self, spec: JobSpec) -> Requirements:
        """What this job needs: what it says of itself, else what the options say."""
        says, options = spec.attributes, self.settings
        stated = self.directory(spec)
        cwd, git = (stated, "") if self.dirs is None else self.dirs.place(stated)
        return Requirements(
            gpus=options.gpus_per_job if says.gpus is None else says.gpus,
            time_limit_s=options.time_limit if says.time_limit_s is None else says.time_limit_s,
            retries=options.retries if says.retries is None else says.retries,
            cwd=cwd,
            mem_bytes=round_budget(says.mem_bytes or 0),
            stated_mem_bytes=says.mem_bytes or 0,
            prio=says.prio,
            name=says.name,
            tags=says.tags,
            gpu_model=says.gpu_model,
            env=says.env,
            git=git,
            limited_tags=tuple(tag for tag in says.tags if tag in options.tag_limits) if options.tag_max_gpus else (),
            items=says.items,
        )

    def directory(self, spec: JobSpec) -> bytes:
        """The directory that this job is submitted for."""
        says = spec.attributes.cwd
        return self.cwd if says is None else os.path.join(self.cwd, says)

    def look_around(self, specs: Sequence[JobSpec]) -> None:
        """Find out all that takes long before these jobs are booked: git may have to be asked, files to be copied."""
        if self.dirs is not None:
            self.dirs.prepare()
            for directory in {self.directory(spec) for spec in specs}:
                self.dirs.place(directory)


class Typed(Protocol):
    """Jobs that are made of what was typed, in the place of a file."""

    @property
    def stem(self) -> str:
        """What their queue is called."""

    @property
    def owner(self) -> bytes:
        """What their queue belongs to: another start with the same owner goes on there. No path is like it."""

    @property
    def words(self) -> list[str]:
        """As they are typed, the verb first, without the options that all verbs have."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A command with parameters, in the place of a file. Its queue is that of the command, whatever the values."""

    command: str
    parameters: tuple[str, ...] = ()  # NAME=VALUES
    each: str | None = None  # a CSV file

    @property
    def stem(self) -> str:
        return "sweep-" + hashlib.blake2b(os.fsencode(self.command), digest_size=4).hexdigest()

    @property
    def owner(self) -> bytes:
        return b"-c " + os.fsencode(self.command)

    @property
    def words(self) -> list[str]:
        more = [word for parameter in self.parameters for word in ("-p", parameter)]
        return ["run", "-c", self.command, *more, *(["--each", self.each] if self.each else [])]


def parse(data: bytes, rules: SubmitOptions, where: str) -> JobFile:
    """The jobs of a list and what is wrong with them; its kind is told by the suffix of `where`."""
    if not where.lower().endswith(_YAML):
        return jobfile.parse(data, **_options(rules))
    from gpusched.lists.yaml_jobs import parse as parse_yaml

    def read_beside(path: str) -> bytes:
        with open(os.path.join(os.path.dirname(where), os.path.expanduser(path)), "rb") as file:
            return file.read()

    return parse_yaml(data, read_beside, **_options(rules))


def parse_sweep(sweep: Sweep, rules: SubmitOptions) -> JobFile:
    """The same for a command with parameters. Raises GpuschedError for parameters that cannot be read."""
    from gpusched.lists.maker import from_command
    from gpusched.lists.sweep import parameter, table

    axes = []
    where = f"--each {sweep.each}"
    try:
        if sweep.each is not None:
            with open(sweep.each, "rb") as file:
                axes.append(table(file.read()))
        for text in sweep.parameters:
            where = f"-p {text}"
            axes.append(parameter(text))
    except OSError as error:
        raise GpuschedError(f"cannot be read: {error.strerror}", where=where) from None
    except ValueError as error:
        hint = "-p lr=1e-3,1e-4 or -p seed=0..4; --each takes a CSV file with a header"
        raise GpuschedError(str(error), where=where, hint=hint) from None
    return from_command(sweep.command, axes, **_options(rules))


def read(data: bytes, rules: SubmitOptions, where: str) -> JobFile:
    """The jobs of a list. Raises GpuschedError with line and caret when it cannot be right."""
    return refused(parse(data, rules, where), where)


def refused(jobs: JobFile, where: str) -> JobFile:
    """The same jobs, unless they cannot be right: then GpuschedError."""
    if jobs.errors:
        raise refusal(jobs.errors, where)
    return jobs


def _options(rules: SubmitOptions) -> dict[str, Any]:
    settings = rules.settings
    return {"force": rules.force, "strip_gpu_env": settings.strip_gpu_env, "gpus": settings.gpus_per_job}


def refusal(errors: Sequence[Finding], where: str) -> GpuschedError:
    """The findings that refuse a list, as one error."""
    lines = "a line" if len(errors) == 1 else f"{len(errors)} lines"
    forceable = all(finding.forceable for finding in errors)
    way_on = ", or use --force if they are meant" if forceable else ""
    return GpuschedError(
        f"{lines} cannot be right\n{render_findings(errors, where)}",
        where=where,
        hint=f"nothing of this list was taken; mend it{way_on}",
    )


def find_impossible(
    specs: Sequence[JobSpec], rules: SubmitOptions, devices: Sequence[Device]
) -> list[tuple[JobSpec, str]]:
    """The jobs that these allowed devices can never serve, and why not."""
    return [
        (spec, why)
        for spec in specs
        if spec.attributes is not NO_ATTRIBUTES and (why := _impossible(rules.needs(spec), rules.limits, devices))
    ]


def refuse_impossible(specs: Sequence[JobSpec], rules: SubmitOptions, devices: Sequence[Device]) -> None:
    """Raise GpuschedError for jobs that these allowed devices can never serve."""
    wrong = [f"  line {spec.line}: {why}" for spec, why in find_impossible(specs, rules, devices)]
    if wrong:
        more = [f"  … and {len(wrong) - SHOWN_IMPOSSIBLE} more"] if len(wrong) > SHOWN_IMPOSSIBLE else []
        text = "\n".join(["some jobs can never run here", *wrong[:SHOWN_IMPOSSIBLE], *more])
        raise GpuschedError(text, hint="nothing of this list was taken; see `gpusched devices` for what is here")


def _impossible(needs: Requirements, limits: Limits, devices: Sequence[Device]) -> str:
    want = "a GPU" if needs.gpus == 1 else f"{needs.gpus} GPUs"
    if needs.gpus > limits.max_gpus:
        return f"wants {want}, and this queue may hold {limits.max_gpus} (--max-gpus {needs.gpus})"
    for tag in needs.tags:
        if needs.gpus > limits.tag_gpus.get(tag, needs.gpus):
            return f"wants {want}, and the tag {tag} may hold {limits.tag_gpus[tag]} (--tag-max-gpus)"
    fitting = [d for d in devices if needs.gpu_model.lower() in d.name.lower()]
    if needs.gpus > len(fitting):
        model = f" named {needs.gpu_model}" if needs.gpu_model else ""
        there = {0: "none is", 1: "1 is"}.get(len(fitting), f"{len(fitting)} are")
        return f"wants {want}{model}, and {there} allowed here"
    if needs.mem_bytes:
        large = [d for d in fitting if to_give(d) >= needs.mem_bytes]
        if needs.gpus > len(large):
            most = max(to_give(d) for d in fitting) // MIB
            has = (
                f"a GPU here can give {most} at most" if needs.gpus == 1 else f"only {len(large)} here can give so much"
            )
            return f"wants {needs.mem_bytes // MIB} MiB on {want}, and {has}"
    return ""


def to_give(device: Device) -> int:
    """The largest budget that the device has room for; none where its memory cannot be read."""
    return max(0, (device.total_bytes or 0) - device.reserved_bytes - MARGIN_BYTES)


def submit(
    store: Store,
    specs: Sequence[JobSpec],
    rules: SubmitOptions,
    now: float,
    *,
    complete: bool = True,
    append: bool = False,
) -> QueueChange:
    """Make the queue hold these jobs; what waits there already gets the new options, order and line numbers."""
    return submission.submit(
        store, specs, rules.needs, now, complete=complete, retry_failed=rules.retry_failed, append=append
    )
