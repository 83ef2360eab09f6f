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

from gpusched.cli.options import SettingsCommand
from gpusched.cli.work import Asked, rules_for, say, work, work_options
from gpusched.core.modelrecord import DEFAULTS
from gpusched.errors import EXIT_CANNOT_WORK, EXIT_OK, EXIT_SOME_FAILED, GpuschedError

if TYPE_CHECKING:
    from gpusched.api import EsdWorkshop
    from gpusched.core.jobfile import JobFile
    from gpusched.experiments.esd import EsdExperiment, Plan
    from gpusched.experiments.esdconfig import EsdConfig

F = TypeVar("F", bound=Callable[..., Any])

NEEDED = ("torch", "safetensors", "numpy")  # by every analysis


def esd_options(callback: F) -> F:
    """Give a command the options of the analysis, by the names of the fields of EsdConfig."""
    for decorate in reversed(
        (
            click.option("--model-list", metavar="CSV", default="", help="Analyse the models of this table."),
            click.option("--single-model", metavar="NAME|PATH", default="", help="Analyse this model."),
            click.option(
                "--output-dir",
                metavar="DIR",
                default="esd_results",
                show_default=True,
                help="Keep the results, and what is needed to go on, in this directory.",
            ),
            click.option(
                "--source-model", metavar="NAME|PATH", default="", help="Of --single-model: the base that it changes."
            ),
            click.option("--relation", metavar="WORD", default="", help="Of --single-model: adapter, finetune, base …"),
            click.option("--revision", metavar="REV", default="", help="Of --single-model: branch, tag or commit."),
            click.option("--overwrite", is_flag=True, help="Analyse again what is done already."),
            click.option(
                "--fix-fingers",
                type=click.Choice(["xmin_mid", "xmin_peak", "DKS"], case_sensitive=False),
                default=DEFAULTS["fix_fingers"],
                show_default=True,
                help="Begin the tail at the median, at the peak, or where it fits best.",
            ),
            click.option(
                "--evals-thresh",
                type=float,
                metavar="X",
                default=DEFAULTS["evals_thresh"],
                show_default=True,
                help="Leave out eigenvalues at or below X.",
            ),
            click.option(
                "--bins",
                type=int,
                metavar="N",
                default=DEFAULTS["bins"],
                show_default=True,
                help="Look for the peak in N bins.",
            ),
            click.option(
                "--peak-window",
                type=click.Choice(["near", "legacy"]),
                default=DEFAULTS["peak_window"],
                show_default=True,
                help="Look for the tail of xmin_peak near the peak, or where much published code does.",
            ),
            click.option(
                "--solver",
                type=click.Choice(["auto", "gram", "svd", "fast"]),
                default=DEFAULTS["solver"],
                show_default=True,
                help="Solve a float64 Gram matrix, or take singular values; fast is float32, and less exact.",
            ),
            click.option("--device", metavar="DEVICE", default="", help="Compute on auto, cpu, cuda or cuda:N."),
            click.option("--no-parallel-gpu", is_flag=True, help="Do one layer after the other."),
            click.option("--layers", metavar="REGEX", default="", help="Analyse the tensors of such names only."),
            click.option("--embeddings", is_flag=True, help="Analyse embeddings too."),
            click.option(
                "--min-evals",
                type=int,
                metavar="N",
                default=DEFAULTS["min_evals"],
                show_default=True,
                help="Fit no tail to fewer eigenvalues.",
            ),
            click.option("--farms", is_flag=True, help="Sample blocks of one aspect ratio of each matrix (FARMS)."),
            click.option("--randomize", is_flag=True, help="Compare with the same entries in random order."),
            click.option("--dtype-report", is_flag=True, help="Tell of the types that the weights are stored in."),
            click.option("--plots", is_flag=True, help="Draw alpha by layer, and the spectra with their tails."),
            click.option(
                "--cache-dir",
                metavar="DIR",
                default="",
                help="Share spectra of known tensors there.  [default: OUTPUT_DIR/.spectra-cache]",
            ),
            click.option(
                "--disk-reserve", metavar="SIZE", default="", help="Download nothing that leaves less than this free."
            ),
        )
    ):
        callback = decorate(callback)
    return callback


@click.command(
    cls=SettingsCommand,
    epilog="\b\nExamples:\n  gpusched esd --model-list atlas.csv --output-dir esd_results --max-gpus 4\n"
    "  gpusched esd --single-model gpt2 --output-dir out --plots",
)
@esd_options
@work_options
def esd(asked: Asked, no_parallel_gpu: bool, **given: Any) -> int:
    """Analyse the spectra of the weights of many models, one job a model.

    The same command again goes on where it stopped: a model is done when its results are complete and were made with
    the same options. Results, skipped.csv, esd_results_summary.csv and report.html are in the output directory.
    """
    from gpusched.experiments.esd import EsdExperiment
    from gpusched.experiments.esdconfig import EsdConfig

    config = EsdConfig(**given, parallel_gpu=not no_parallel_gpu, retry_failed=asked.retry_failed)
    config.check()
    rules_for(asked)
    _refuse_missing(config)
    workshop = _workshop(config, asked)
    experiment = EsdExperiment(config, workshop)
    try:
        plan = experiment.plan()
        if asked.dry_run:
            return _dry_run(experiment, workshop, plan, asked)
        code = experiment.run(plan)
        _end(experiment, workshop, code, asked)
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


def _workshop(config: EsdConfig, asked: Asked) -> EsdWorkshop:
    """The library's, that works as a verb does: before the eyes of a person."""
    from gpusched import api

    class Workshop(api.EsdWorkshop):
        def tell(self, text: str) -> None:
            if not asked.quiet:
                say(text)

        def run(self, jobs: JobFile, *, complete: bool) -> int:
            rules = replace(self.rules, dirs=api.job_dirs(self.place, self.rules))
            devices = self.take_devices()
            return work(self.source, jobs, rules, asked, devices, complete=complete, end=lambda queue, code: None)

    return Workshop(config, asked.loaded)


def _dry_run(experiment: EsdExperiment, workshop: EsdWorkshop, plan: Plan, asked: Asked) -> int:
    from gpusched.cli.dry_run import dry_run

    workshop.close()
    experiment.tell(plan)
    if not plan.jobs.specs and not asked.as_json:
        say("nothing is left to do")
        return EXIT_SOME_FAILED if plan.failed else EXIT_OK
    return dry_run(workshop.place, plan.jobs, workshop.rules, as_json=asked.as_json)


def _end(experiment: EsdExperiment, workshop: EsdWorkshop, code: int, asked: Asked) -> None:
    """Write the report and print what it came to. A reader that is gone changes nothing of that."""
    from gpusched.cli.esd_end import document, page, write_report
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
