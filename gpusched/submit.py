"""Text -> jobs in the queue: parse, refuse or warn, reconcile, store. Starts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpusched.config import Settings
from gpusched.core import jobfile
from gpusched.core.findings import Finding, render_findings
from gpusched.core.jobfile import JobFile
from gpusched.core.model import JobSpec, Requirements
from gpusched.core.reconcile import Change
from gpusched.errors import GpuschedError
from gpusched.host.store import Store


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


def read(data: bytes, rules: Rules, where: str) -> JobFile:
    """The jobs of a list. Raises GpuschedError with line and caret when it cannot be right."""
    settings = rules.settings
    jobs = jobfile.parse(data, force=rules.force, strip_gpu_env=settings.strip_gpu_env, gpus=settings.gpus_per_job)
    if jobs.errors:
        raise refusal(jobs.errors, where)
    return jobs


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
