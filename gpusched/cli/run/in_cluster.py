"""`gpusched run FILE --cluster NAME`: give a list to a cluster, and wait until its jobs have ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from gpusched.cli.options import print_json, say
from gpusched.cli.run.options import RunOptions
from gpusched.cli.run.source import accept_list
from gpusched.common.errors import EXIT_INTERRUPTED, GpuschedError
from gpusched.common.text import count
from gpusched.config.settings import GPUS, SETTINGS

if TYPE_CHECKING:
    from gpusched.lists.submit import JobSource


def run_in_cluster(cluster: str, source: JobSource, options: RunOptions, *, force: bool) -> int:
    """Add the jobs of a list that the cluster does not have yet, wait for all of them, and return the exit code."""
    from gpusched.lists.submit import SubmitOptions, owner_of
    from gpusched.operations.change import requests
    from gpusched.operations.look.wait import wait_for
    from gpusched.operations.run import submit

    if options.dry_run:
        raise GpuschedError(
            "--dry-run knows this box alone", hint=f"`gpusched explain -q {cluster}` says why jobs wait"
        )
    _warn_of_ignored(cluster, options)
    queue_dir = submit.find_standing_queue(cluster, options.loaded.settings.state_dir)
    submit.refuse_without_cluster(queue_dir, cluster)
    wanted = SubmitOptions(options.loaded.settings, os.fsencode(os.getcwd()), force)
    jobs = accept_list(source, wanted, **options.accepting)
    added = submit.add_jobs(queue_dir, jobs, wanted, submit.Wishes(source=os.fsdecode(owner_of(source.source))))
    ids = [str(job_id) for job_id in added.ids]
    if options.retry_failed:
        requests.requeue_failed_among(queue_dir, ids)
    _say_added(cluster, len(ids), len(added.earlier))
    try:
        report = wait_for(queue_dir, ids, notify=say)
    except KeyboardInterrupt:
        say(f"the jobs go on: the same command waits for them, `gpusched status -q {cluster}` shows them")
        return EXIT_INTERRUPTED
    if options.as_json:
        print_json(report.document())
    else:
        click.echo(report.sentence)
    return report.code


def _warn_of_ignored(cluster: str, options: RunOptions) -> None:
    """Say which options have no effect there: each node has a dispatcher with settings of its own."""
    stated = [SETTINGS[name] for name in options.loaded.stated()]
    if flags := ", ".join(sorted(setting.flag for setting in stated if setting.group == GPUS)):
        where = f"HOSTS.yaml, or `gpusched set -q {cluster} max-gpus=N` for all nodes together"
        say(f"warning: only a run on the GPUs of this box goes by {flags}; for those of the cluster: {where}")


def _say_added(cluster: str, jobs: int, earlier: int) -> None:
    were = f", {earlier} {'was' if earlier == 1 else 'were'} there" if earlier else ""
    say(f"{count(jobs - earlier, 'job')} added to {cluster}{were}")
