"""`gpusched esd`: the spectral analysis of many models, one job a model. Analyses nothing itself."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpusched.cli.options import SettingsCommand, say
from gpusched.cli.run.options import RunOptions, run_options
from gpusched.cli.run.session import print_dry_run, session
from gpusched.common.errors import EXIT_CANNOT_WORK, EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.esd.config import CHOICES, EsdConfig, flag
from gpusched.esd.model_record import DEFAULTS

if TYPE_CHECKING:
    from gpusched.esd.experiment import EsdWorkshop
    from gpusched.esd.jobs import EsdExperiment, EsdTodo

F = TypeVar("F", bound=Callable[..., Any])

NEEDED = ("torch", "safetensors", "numpy")  # by every analysis


def esd_options(callback: F) -> F:
    """Give a command the options of the analysis, by the names of the fields of EsdConfig."""
    for decorate in reversed(
        (
            _text("--model-list", "CSV", "Analyse the models of this table."),
            _text("--single-model", "NAME|PATH", "Analyse this model."),
            click.option(
                "--output-dir",
                metavar="DIR",
                default="esd_results",
                help="Keep the results, and what is needed to go on, in this directory.  [default: esd_results]",
            ),
            _text("--source-model", "NAME|PATH", "Of --single-model: what it was made from, the base of an adapter."),
            _text("--relation", "WORD", "Of --single-model: adapter, or anything else for a whole model."),
            _text("--revision", "REV", "Of --single-model: branch, tag or commit on the hub."),
            _switch("--overwrite", "Analyse again what is done already."),
            _choice("fix_fingers", "Begin the tail at the median, at the peak, or where it fits best."),
            _number("evals_thresh", float, "Leave out eigenvalues that are not above X."),
            _number("bins", int, "Look for the peak in a histogram of N bins."),
            _choice("peak_window", "Look for the tail of xmin_peak near the peak, or where much published code does."),
            _choice("solver", "Solve a float64 Gram matrix, or take singular values; fast is float32, and less exact."),
            _text("--device", "DEVICE", "Compute on auto, cpu, cuda or cuda:N.  [default: auto]"),
            _switch("--no-parallel-gpu", "Do one layer after the other."),
            _text("--layers", "REGEX", "Analyse only tensors whose name this finds.  [default: all]"),
            _switch("--embeddings", "Analyse embeddings too."),
            _number("min_evals", int, "Fit no tail to fewer eigenvalues."),
            _switch("--farms", "Take the spectra of submatrices of one aspect ratio (FARMS)."),
            _switch("--randomize", "Compare with the same entries in random order."),
            _switch("--dtype-report", "Tell in the log of each job how its weights are stored."),
            _switch("--plots", "Draw alpha by layer, and the spectra with their tails."),
            _text("--cache-dir", "DIR", "Keep spectra of known tensors here.  [default: in the output directory]"),
            _text("--disk-reserve", "SIZE", "Download nothing that leaves less than this free.  [default: none]"),
            _switch("--drop-downloads", "Delete what a job has downloaded itself at its end, unless others use it."),
        )
    ):
        callback = decorate(callback)
    return callback


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


@click.command(
    cls=SettingsCommand,
    epilog="\b\nExamples:\n  gpusched esd --model-list atlas.csv --output-dir esd_results --max-gpus 4\n"
    "  gpusched esd --single-model gpt2 --output-dir out --plots",
)
@esd_options
@run_options
def esd(options: RunOptions, no_parallel_gpu: bool, **given: Any) -> int:
    """Analyse the spectra of the weights of many models.

    Each is a job of its own. The same command again goes on where it stopped: a model is done when its results are
    complete and were made with the same options. Results, skipped.csv, esd_results_summary.csv and report.html are in
    the output directory.
    """
    from gpusched.esd.jobs import EsdExperiment

    config = EsdConfig(**given, parallel_gpu=not no_parallel_gpu, retry_failed=options.retry_failed)
    config.check()
    _refuse_missing(config)
    workshop = _workshop(config, options)
    experiment = EsdExperiment(config, workshop)
    try:
        plan = experiment.plan()
        if options.dry_run:
            return _dry_run(experiment, workshop, plan, options)
        code = experiment.run(plan)
        _end(experiment, workshop, code, options)
        return code
    finally:
        workshop.close()


def _refuse_missing(config: EsdConfig) -> None:
    """The extra may not be installed: hundreds of jobs would say so one by one."""
    wanted = [*NEEDED, *(["matplotlib"] if config.plots else [])]
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise GpuschedError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed here",
            where=sys.executable,
            hint="pip install 'gpusched-lab[esd]'",
            exit_code=EXIT_CANNOT_WORK,
        )


def _workshop(config: EsdConfig, asked: RunOptions) -> EsdWorkshop:
    """The library's, that works as a verb does: before the eyes of a person."""
    from gpusched.esd.experiment import EsdWorkshop

    class Workshop(EsdWorkshop):
        def tell(self, text: str) -> None:
            if not asked.quiet:
                say(text)

    quiet_end = replace(session(asked), summarize=lambda queue, code: None)
    return Workshop(config, asked.loaded, quiet_end)


def _dry_run(experiment: EsdExperiment, workshop: EsdWorkshop, plan: EsdTodo, asked: RunOptions) -> int:
    from gpusched.operations.dry_run import dry_run

    workshop.close()
    experiment.tell(plan)
    if not plan.has_work and not asked.as_json:
        say("nothing is left to do")
        return EXIT_SOME_FAILED if plan.failed else EXIT_OK
    return print_dry_run(dry_run(workshop.place, plan.jobs, workshop.rules), asked)


def _end(experiment: EsdExperiment, workshop: EsdWorkshop, code: int, asked: RunOptions) -> None:
    """Write the report and print what it came to. A reader that is gone changes nothing of that."""
    from gpusched.cli.features.esd_report import document, page, write_report
    from gpusched.cli.main import drop

    write_report(experiment, time.time())
    try:
        if asked.as_json:
            print(json.dumps(document(experiment, workshop, code), indent=2))
        else:
            from gpusched.views.tables import write

            write(sys.stdout, page(experiment, workshop))
        sys.stdout.flush()
    except OSError:
        drop(sys.stdout)
