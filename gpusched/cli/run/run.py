"""`gpusched run`: submit a file of commands and dispatch until all have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpusched.cli.run.in_cluster import run_in_cluster
from gpusched.cli.run.one import RunCommand
from gpusched.cli.run.options import RunOptions, run_options
from gpusched.cli.run.session import print_dry_run, session
from gpusched.cli.run.source import accept, await_text, source_arguments

if TYPE_CHECKING:
    from gpusched.lists.submit import JobSource


@click.command(
    cls=RunCommand,
    epilog="Example: gpusched run -c 'python train.py --lr {lr}' -p lr=0.1,0.2",
)
@source_arguments
@run_options
@click.option("--force", is_flag=True, help="Run the list despite errors that can be forced.")
@click.option("--cluster", metavar="NAME", help="Run the list on the nodes of this cluster.")
@click.option("--follow", is_flag=True, help="Stay at the end, for lines added later.")
def run(source: JobSource, options: RunOptions, force: bool, cluster: str | None, follow: bool) -> int:
    """Run a file of commands on the GPUs that are free.

    FILE has one shell command a line, or is a YAML job file; - reads stdin. The
    same command again goes on. Behind -- stands one command, which is followed.
    """
    if cluster is not None:
        return run_in_cluster(cluster, source, options, force=force)
    from gpusched.operations.box.devices import open_devices
    from gpusched.operations.run import list_queue
    from gpusched.operations.run.dry_run import dry_run
    from gpusched.operations.run.run import feed_of, run_jobs

    queue_dir, submission, jobs = list_queue.read_jobs(
        source,
        options.loaded,
        force=force,
        retry_failed=options.retry_failed,
        accept=lambda jobs, name: accept(jobs, name, options.loaded.settings, **options.accepting),
    )
    if options.dry_run:
        return print_dry_run(dry_run(queue_dir, jobs, submission, complete=source.is_complete), options)
    submission = list_queue.with_dirs(submission, queue_dir)
    with open_devices(submission.settings, submission.gpus_wanted(jobs.specs)) as devices:
        devices.check(jobs, submission, queue_dir)
        begun = await_text() if source.is_stream and not follow and not list_queue.has_work(queue_dir) else b""
        how = session(options, feed=feed_of(source, submission, begun), follow=follow)
        return run_jobs(source.source, jobs, submission, devices, complete=source.is_complete, session=how)
