"""`gpusched esd`: the spectral analysis of many models, one job for each of them."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from gpusched.cli.features.table import TableCommand, table_options
from gpusched.cli.options import print_json, print_page, say
from gpusched.cli.run.options import RunOptions, run_options
from gpusched.cli.run.session import print_dry_run, session
from gpusched.common.errors import EXIT_DISPATCHED_ELSEWHERE, EXIT_OK, EXIT_SOME_FAILED
from gpusched.esd.config import EsdConfig

if TYPE_CHECKING:
    from gpusched.esd.backend import EsdBackend
    from gpusched.esd.experiment import EsdExperiment
    from gpusched.esd.todo import EsdTodo


@click.command(
    cls=TableCommand,
    epilog="\b\nExamples:\n  gpusched esd --model-list atlas.csv --output-dir esd_results --max-gpus 4\n"
    "  gpusched esd --single-model gpt2 --output-dir out --plots",
)
@table_options(EsdConfig)
@run_options
def esd(options: RunOptions, **values: Any) -> int:
    """Analyse the spectra of the weights of many models.

    Each model is a job. The same command again resumes: a model is done when its results are complete and were made
    with the same options. Results, skipped.csv, esd_results_summary.csv and report.html are in the output directory.
    """
    import gpusched.views.features.esd_report  # needed only at the end, when the package may be gone  # noqa: F401
    from gpusched.esd.experiment import EsdExperiment
    from gpusched.esd.report import write_report

    config = EsdConfig(**values, retry_failed=options.retry_failed)
    config.check()
    with closing(_backend(config, options)) as backend:
        experiment = EsdExperiment(config, backend)
        todo = experiment.find_todo()
        if options.dry_run:
            return _dry_run(experiment, todo, options)
        code = experiment.run(todo)
    write_report(experiment, time.time())
    has_worked = bool(todo.run) and code != EXIT_DISPATCHED_ELSEWHERE
    if has_worked or not options.quiet or options.as_json:
        _print_results(experiment, code, options)
    return code


def _backend(config: EsdConfig, options: RunOptions) -> EsdBackend:
    """Return the backend of an experiment that a person watches."""
    from gpusched.esd.backend import EsdBackend

    watched = session(options)._replace(summarize=lambda queue, code: None)
    return EsdBackend(config, options.loaded, session=watched, notify=options.notify)


def _dry_run(experiment: EsdExperiment, todo: EsdTodo, options: RunOptions) -> int:
    from gpusched.operations.run.dry_run import dry_run

    backend = experiment.backend
    backend.close()
    experiment.announce(todo)
    if not todo.run and not options.as_json:
        say("nothing is left to do")
        return EXIT_SOME_FAILED if todo.failed else EXIT_OK
    return print_dry_run(dry_run(backend.queue_dir, todo.jobs, backend.options), options)


def _print_results(experiment: EsdExperiment, code: int, options: RunOptions) -> None:
    """Print the results. A reader that is gone changes nothing about them."""
    from gpusched.cli.main import drop
    from gpusched.esd.report import document, read_results
    from gpusched.operations.queues import current_directory
    from gpusched.views.features.esd_report import page

    try:
        if options.as_json:
            print_json(document(experiment, code))
        else:
            print_page(page(*read_results(experiment), current_directory()))
        sys.stdout.flush()
    except OSError:
        drop(sys.stdout)
