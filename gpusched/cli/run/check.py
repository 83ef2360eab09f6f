"""`gpusched check`: the jobs of a list as they would run, and what is wrong with it. Touches no queue and no GPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from gpusched.cli.options import SettingsCommand, json_option, print_json, print_page, settings_options, warn_of_claims
from gpusched.cli.run.source import read_whole, source_arguments
from gpusched.common.errors import EXIT_OK, EXIT_USAGE
from gpusched.config.layers import LoadedSettings

if TYPE_CHECKING:
    from gpusched.lists.submit import JobSource


@click.command(
    cls=SettingsCommand,
    epilog="\b\nExamples:\n  gpusched check commands.txt\n  gpusched check sweep.yaml --json\n"
    "  gpusched check -c 'python train.py --seed {seed}' -p seed=0..4",
)
@source_arguments
@settings_options("gpus_per_job", "mem", "time_limit", "retries", "strip_gpu_env")
@click.option("--force", is_flag=True, help="Show errors that run --force would allow as warnings.")
@json_option()
@click.option("-v", "--verbose", is_flag=True, help="Print every finding; else the first few of each kind.")
def check(source: JobSource, loaded: LoadedSettings, force: bool, as_json: bool, verbose: bool) -> int:
    """Check a list without running it.

    Prints the jobs as they would run, and what is wrong or doubtful. FILE is what gpusched run takes; - reads
    standard input to its end. The exit code is 2 when gpusched run would refuse the list.
    """
    from gpusched.lists.submit import SubmitOptions
    from gpusched.operations.run import check as checks

    checked = checks.check_list(read_whole(source), SubmitOptions(loaded.settings, os.fsencode(os.getcwd()), force))
    if as_json:
        print_json(checks.document(checked))
    else:
        from gpusched.views.check import page

        rows = [(spec.line, checks.attributes_text(spec), spec.command) for spec in checked.specs]
        findings = checks.findings_text(checked.findings, checked.name, verbose=verbose)
        print_page(page(rows, findings, checked.counts, checked.refusal))
    warn_of_claims(loaded.settings)
    return EXIT_USAGE if checked.refusal else EXIT_OK
