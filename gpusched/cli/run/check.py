"""`gpusched check`: the jobs of a list as they would run, and what is wrong with it. Touches no queue and no GPU."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from gpusched.cli.options import SettingsCommand, settings_options
from gpusched.cli.run.source import JobSource, read_all, read_given, source_arguments
from gpusched.common.errors import EXIT_OK, EXIT_USAGE
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import Settings

if TYPE_CHECKING:
    from gpusched.core.model import JobSpec
    from gpusched.lists.findings import Finding
    from gpusched.views.tables import Line


@click.command(
    cls=SettingsCommand,
    epilog="\b\nExamples:\n  gpusched check commands.txt\n  gpusched check sweep.yaml --json\n"
    "  gpusched check -c 'python train.py --seed {seed}' -p seed=0..4",
)
@source_arguments
@settings_options("gpus_per_job", "time_limit", "retries", "strip_gpu_env")
@click.option("--force", is_flag=True, help="Judge as run --force does: what can be forced is a warning.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Print every finding; else the first few of each kind.")
def check(
    file: str | None,
    command: str | None,
    parameters: tuple[str, ...],
    each: str | None,
    loaded: LoadedSettings,
    force: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Check a list without running it.

    Prints the jobs as they would run, and what is wrong or doubtful. FILE is what gpusched run takes; - reads
    standard input to its end. The exit code is 2 when gpusched run would refuse the list.
    """
    from gpusched.lists.dependencies import check as check_dependencies
    from gpusched.lists.submit import SubmitOptions

    given = read_all(read_given(file, command, parameters, each))
    jobs = given.parse(SubmitOptions(loaded.settings, os.fsencode(os.getcwd()), force))
    waits = [] if jobs.errors else check_dependencies(jobs.specs, given.data)
    findings = sorted([*jobs.findings, *waits], key=lambda finding: finding.line)
    if as_json:
        print(json.dumps(_document(given, jobs.specs, findings, loaded.settings), indent=2))
    else:
        from gpusched.views.tables import write

        write(sys.stdout, _page(given, jobs.specs, findings, verbose=verbose))
    return EXIT_USAGE if _refusal(jobs.specs, findings) else EXIT_OK


def _refusal(specs: tuple[JobSpec, ...], findings: list[Finding]) -> str:
    """Why `gpusched run` would refuse the list; nothing if it would not."""
    wrong = len({finding.line for finding in findings if finding.severity == "error"})
    if wrong:
        return "a line cannot be right" if wrong == 1 else f"{wrong} lines cannot be right"
    return "" if specs else "there is no command in it"


# ---- for people ------------------------------------------------------------------------------------


def _page(given: JobSource, specs: tuple[JobSpec, ...], findings: list[Finding], *, verbose: bool) -> list[Line]:
    from gpusched.lists.findings import SHOWN_PER_CODE, render_findings
    from gpusched.views import tables
    from gpusched.views.words import command_text, count

    rows: list[tables.Row] = []
    for spec in specs:
        command = [command_text(part) for part in spec.command.split(b"\n")]
        rows.append([str(spec.line), _attributes_text(spec), [*command]])
    lines = tables.grid(["LINE", "ATTRIBUTES", "COMMAND"], rows, right="LINE") if rows else []
    if findings:
        limit = len(findings) if verbose else SHOWN_PER_CODE
        text = render_findings(findings, given.name, limit=limit)
        lines += [*([tables.line()] if lines else []), *(tables.line(each) for each in text.split("\n"))]
    kinds = Counter(finding.severity for finding in findings)
    told = [count(kinds[kind], kind) for kind in ("error", "warning", "hint") if kinds[kind]]
    refusal = _refusal(specs, findings)
    end = f": {refusal}, and gpusched run takes nothing of it" if refusal else ""
    style = tables.STATES["failed" if refusal else "succeeded"]
    lines += [tables.line()] if lines else []
    return [*lines, tables.line((", ".join([count(len(specs), "job"), *told]), style), end)]


def _attributes_text(spec: JobSpec) -> str:
    """The attributes as they would be written, masked and fit to show."""
    from gpusched.common.text import clean, mask_secrets
    from gpusched.lists.attributes import render

    return clean(mask_secrets(render(spec.attributes)[1:-1].decode("utf-8", "replace")))


# ---- for programs ----------------------------------------------------------------------------------


def _document(
    given: JobSource, specs: tuple[JobSpec, ...], findings: list[Finding], settings: Settings
) -> dict[str, Any]:
    return {
        "source": given.name,
        "accepted": not _refusal(specs, findings),
        "jobs": [_job(spec, settings) for spec in specs],
        "findings": [
            {
                "severity": finding.severity,
                "code": finding.code,
                "line": finding.line,
                "column": finding.column if finding.source else None,
                "message": finding.message,
                "hint": finding.hint or None,
                "forceable": finding.forceable,
            }
            for finding in findings
        ],
    }


def _job(spec: JobSpec, settings: Settings) -> dict[str, Any]:
    """One job with all that it would get, from its own attributes and the settings."""
    from gpusched.common.text import mask_secrets
    from gpusched.core.documents import shown_command

    own = spec.attributes
    env = {}
    for name, value in own.env:
        shown = mask_secrets((name + b"=" + value).decode("utf-8", "replace"))
        env[name.decode()] = shown.partition("=")[2]
    return {
        "line": spec.line,
        "occurrence": spec.occurrence,
        "command": shown_command(spec.command),
        "name": own.name or None,
        "tags": list(own.tags),
        "gpus": settings.gpus_per_job if own.gpus is None else own.gpus,
        "mem_bytes": own.mem_bytes,
        "gpu_model": own.gpu_model or None,
        "time_limit_s": settings.time_limit if own.time_limit_s is None else own.time_limit_s,
        "retries": settings.retries if own.retries is None else own.retries,
        "prio": own.prio,
        "cwd": None if own.cwd is None else own.cwd.decode("utf-8", "replace"),
        "env": env,
        "after": {dependency.kind.value: list(dependency.refs) for dependency in own.after},
    }
