"""`gpusched esd`: the spectral analysis of many models, one job for each of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpusched.cli.options import SettingsCommand, print_json, print_page, say
from gpusched.cli.run.options import RunOptions, run_options
from gpusched.cli.run.session import print_dry_run, session
from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED
from gpusched.esd.config import CHOICES, EsdConfig, flag
from gpusched.esd.model_record import DEFAULTS

if TYPE_CHECKING:
    from gpusched.esd.backend import EsdBackend
    from gpusched.esd.experiment import EsdExperiment
    from gpusched.esd.todo import EsdTodo

F = TypeVar("F", bound=Callable[..., Any])


def _text(name: str, metavar: str, help: str) -> Callable[[F], F]:
    return click.option(name, metavar=metavar, default="", help=help)


def _switch(name: str, help: str) -> Callable[[F], F]:
    return click.option(name, is_flag=True, help=help)


def _number(name: str, kind: type, help: str) -> Callable[[F], F]:
    metavar, default = "X" if kind is float else "N", DEFAULTS[name]
    help = f"{help}  [default: {default:g}]"
    return click.option(flag(name), type=kind, metavar=metavar, default=default, help=help)


def _choice(name: str, help: str) -> Callable[[F], F]:
    words, default = CHOICES[name], DEFAULTS[name]
    return click.option(
        flag(name),
        type=click.Choice(words, case_sensitive=False),
        metavar="|".join(words),
        default=default,
        help=f"{help}  [default: {default}]",
    )


# The options of the analysis, by the names of the fields of EsdConfig.
OPTIONS = (
    _text("--model-list", "CSV", "Analyse the models of this table."),
    _text("--single-model", "NAME|PATH", "Analyse this model."),
    click.option(
        "--output-dir",
        metavar="DIR",
        default="esd_results",
        help="Keep the results, and what is needed to resume, in this directory.  [default: esd_results]",
    ),
    _text(
        "--source-model", "NAME|PATH", "With --single-model: the model that it was made from, the base of an adapter."
    ),
    _text("--relation", "WORD", "With --single-model: adapter; any other word means a whole model."),
    _text("--revision", "REV", "With --single-model: branch, tag or commit on the hub."),
    _switch("--overwrite", "Analyse models again that are done already."),
    _choice("fix_fingers", "Begin the tail at the median, at the peak, or where it fits best."),
    _number("evals_thresh", float, "Leave out eigenvalues up to X."),
    _number("bins", int, "Look for the peak in a histogram of N bins."),
    _choice("peak_window", "Look for the tail of xmin_peak near the peak, or where much published code looks."),
    _choice("solver", "Solve a float64 Gram matrix, or take singular values; fast uses float32 and is less exact."),
    _text("--device", "DEVICE", "Compute on auto, cpu, cuda or cuda:N.  [default: auto]"),
    _switch("--no-parallel-gpu", "Analyse one layer after the other."),
    _text("--layers", "REGEX", "Analyse only tensors whose name contains a match.  [default: all]"),
    _switch("--embeddings", "Analyse embeddings too."),
    _number("min_evals", int, "Fit no tail to fewer than N eigenvalues."),
    _switch("--farms", "Take the spectra of submatrices of one aspect ratio (FARMS)."),
    _switch("--randomize", "Compare with the same entries in random order."),
    _switch("--dtype-report", "Print in the log of each job how its weights are stored."),
    _switch("--plots", "Draw alpha by layer, and the spectra with their tails."),
    _text("--cache-dir", "DIR", "Keep spectra of known tensors here.  [default: in the output directory]"),
    _text("--disk-reserve", "SIZE", "Download nothing that leaves less than this free.  [default: none]"),
    _switch("--drop-downloads", "Delete the files that a job has downloaded at its end, unless others use them."),
)


def esd_options(callback: F) -> F:
    """Give a command the options of the analysis."""
    for decorate in reversed(OPTIONS):
        callback = decorate(callback)
    return callback


@click.command(
    cls=SettingsCommand,
    epilog="\b\nExamples:\n  gpusched esd --model-list atlas.csv --output-dir esd_results --max-gpus 4\n"
    "  gpusched esd --single-model gpt2 --output-dir out --plots",
)
@esd_options
@run_options
def esd(options: RunOptions, no_parallel_gpu: bool, **values: Any) -> int:
    """Analyse the spectra of the weights of many models.

    Each model is a job. The same command again resumes: a model is done when its results are complete and were made
    with the same options. Results, skipped.csv, esd_results_summary.csv and report.html are in the output directory.
    """
    from gpusched.esd.experiment import EsdExperiment
    from gpusched.esd.jobs import refuse_missing_libraries
    from gpusched.esd.report import write_report

    config = EsdConfig(**values, parallel_gpu=not no_parallel_gpu, retry_failed=options.retry_failed)
    config.check()
    refuse_missing_libraries(config)
    with _backend(config, options) as backend:
        experiment = EsdExperiment(config, backend)
        todo = experiment.find_todo()
        if options.dry_run:
            return _dry_run(experiment, todo, options)
        code = experiment.run(todo)
    write_report(experiment, time.time())
    _print_results(experiment, code, options)
    return code


def _backend(config: EsdConfig, options: RunOptions) -> EsdBackend:
    """Return the backend of an experiment that a person watches."""
    from gpusched.esd.backend import EsdBackend

    return EsdBackend(
        config,
        options.loaded,
        session=replace(session(options), summarize=lambda queue, code: None),
        notify=(lambda text: None) if options.quiet else say,
    )


def _dry_run(experiment: EsdExperiment, todo: EsdTodo, options: RunOptions) -> int:
    from gpusched.operations.dry_run import dry_run

    backend = experiment.backend
    backend.close()
    experiment.announce(todo)
    if not todo.has_work and not options.as_json:
        say("nothing is left to do")
        return EXIT_SOME_FAILED if todo.failed else EXIT_OK
    return print_dry_run(dry_run(backend.queue_dir, todo.jobs, backend.options), options)


def _print_results(experiment: EsdExperiment, code: int, options: RunOptions) -> None:
    """Print the results. A reader that is gone changes nothing about them."""
    from gpusched.cli.main import drop
    from gpusched.esd.report import document, read_results
    from gpusched.operations.queues import current_directory
    from gpusched.views.esd_report import page

    try:
        if options.as_json:
            print_json(document(experiment, code))
        else:
            print_page(page(read_results(experiment), current_directory()))
        sys.stdout.flush()
    except OSError:
        drop(sys.stdout)
