"""The jobs of a list as they would run, and what is wrong with it. Touches no queue and no GPU, and prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpusched.common.quantities import AUTO_MEMORY
from gpusched.common.text import clean, mask_secrets
from gpusched.config.settings import Settings
from gpusched.core.documents import shown_command
from gpusched.core.model import JobSpec
from gpusched.lists import dependencies
from gpusched.lists.attributes import render
from gpusched.lists.findings import SHOWN_PER_CODE, Finding, render_findings
from gpusched.lists.submit import JobSource, SubmitOptions, count_wrong, find_untagged
from gpusched.operations.run.programs import missing_programs


class CheckedList(NamedTuple):
    """A list that was read and judged. `settings` are those that its jobs would get."""

    name: str
    specs: tuple[JobSpec, ...]
    findings: tuple[Finding, ...]  # in the order of their lines
    settings: Settings

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of findings of each severity."""
        return Counter(finding.severity for finding in self.findings)

    @property
    def refusal(self) -> str:
        """The reason for which `gpusched run` would refuse the list; empty if it would not."""
        return count_wrong(self.findings) or ("" if self.specs else "there is no command in it")


def check_list(source: JobSource, options: SubmitOptions) -> CheckedList:
    """Read and judge a list, with what its jobs wait for."""
    jobs = source.parse(options)
    waits = [] if jobs.errors else dependencies.check(jobs.specs)
    doubts = [*missing_programs(jobs.specs, options.settings), *find_untagged(jobs.specs, options.settings)]
    findings = sorted([*jobs.findings, *waits, *doubts], key=lambda finding: finding.line)
    return CheckedList(source.name, jobs.specs, tuple(findings), options.settings)


def findings_text(findings: Sequence[Finding], name: str, *, verbose: bool) -> str:
    """Return the findings in the list of this name for people; unless `verbose`, only the first few of each kind."""
    return render_findings(findings, name, limit=len(findings) if verbose else SHOWN_PER_CODE)


def attributes_text(spec: JobSpec) -> str:
    """Return the attributes of a job as they would be written, with secrets masked."""
    return clean(mask_secrets(render(spec.attributes)[1:-1].decode("utf-8", "replace")))


def document(checked: CheckedList) -> dict[str, Any]:
    """Return the checked list as a JSON document."""
    return {
        "source": checked.name,
        "accepted": not checked.refusal,
        "jobs": [_job(spec, checked.settings) for spec in checked.specs],
        "findings": [_finding(finding) for finding in checked.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    shown = {name: getattr(finding, name) for name in ("severity", "code", "line", "message", "forceable")}
    return {**shown, "column": finding.column if finding.source else None, "hint": finding.hint or None}


def _job(spec: JobSpec, settings: Settings) -> dict[str, Any]:
    """Return a job with all that it would get, by its own attributes and the settings."""
    own = spec.attributes
    gpus = settings.gpus_per_job if own.gpus is None else own.gpus
    mem_bytes = own.mem_bytes or (settings.mem_bytes if gpus else 0)
    env = [mask_secrets((name + b"=" + value).decode("utf-8", "replace")).split("=", 1) for name, value in own.env]
    return {
        "line": spec.line,
        "occurrence": spec.occurrence,
        "command": shown_command(spec.command),
        "name": own.name or None,
        "tags": list(own.tags),
        "gpus": gpus,
        "mem_bytes": mem_bytes if mem_bytes > 0 else None,
        "learns_memory": mem_bytes == AUTO_MEMORY,
        "gpu_model": own.gpu_model or None,
        "alone": bool(own.alone),
        "time_limit_s": settings.time_limit if own.time_limit_s is None else own.time_limit_s,
        "retries": settings.retries if own.retries is None else own.retries,
        "prio": own.prio,
        "cwd": None if own.cwd is None else own.cwd.decode("utf-8", "replace"),
        "env": dict(env),
        "after": {dependency.kind.value: list(dependency.refs) for dependency in own.after},
    }
