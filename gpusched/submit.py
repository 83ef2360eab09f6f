"""Text -> jobs in the queue: parse, refuse or warn, reconcile, store. Starts nothing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpusched.config import Settings
from gpusched.core import jobfile
from gpusched.core.findings import Finding, render_findings
from gpusched.core.jobfile import JobFile
from gpusched.core.model import JobSpec, Requirements
from gpusched.core.reconcile import Change
from gpusched.errors import GpuschedError
from gpusched.host.store import Store

_YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Rules:
    """How the text of a list is read, and what each of its jobs needs."""

    settings: Settings
    cwd: bytes
    force: bool = False
    retry_failed: bool = False

    @property
    def needs(self) -> Requirements:
        s = self.settings
        return Requirements(s.gpus_per_job, s.time_limit, s.retries, self.cwd)


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
        """As they are typed."""
        more = [word for parameter in self.parameters for word in ("-p", parameter)]
        return ["-c", self.command, *more, *(["--each", self.each] if self.each else [])]


def parse(data: bytes, rules: Rules, where: str) -> JobFile:
    """The jobs of a list and what is wrong with them; its kind is told by the suffix of `where`."""
    if not where.lower().endswith(_YAML):
        return jobfile.parse(data, **_options(rules))
    from gpusched.experiments.jobs import parse as parse_yaml

    def read_beside(path: str) -> bytes:
        with open(os.path.join(os.path.dirname(where), os.path.expanduser(path)), "rb") as file:
            return file.read()

    return parse_yaml(data, read_beside, **_options(rules))


def parse_sweep(sweep: Sweep, rules: Rules) -> JobFile:
    """The same for a command with parameters. Raises GpuschedError for parameters that cannot be read."""
    from gpusched.experiments.maker import from_command
    from gpusched.experiments.sweep import parameter, table

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


def read(data: bytes, rules: Rules, where: str) -> JobFile:
    """The jobs of a list. Raises GpuschedError with line and caret when it cannot be right."""
    return refused(parse(data, rules, where), where)


def refused(jobs: JobFile, where: str) -> JobFile:
    """The same jobs, unless they cannot be right: then GpuschedError."""
    if jobs.errors:
        raise refusal(jobs.errors, where)
    return jobs


def _options(rules: Rules) -> dict[str, Any]:
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


def submit(
    store: Store,
    specs: Sequence[JobSpec],
    rules: Rules,
    now: float,
    *,
    complete: bool = True,
    append: bool = False,
) -> Change:
    """Make the queue hold these jobs; what waits there already gets the new options, order and line numbers."""
    return store.submit(specs, rules.needs, now, complete=complete, retry_failed=rules.retry_failed, append=append)
