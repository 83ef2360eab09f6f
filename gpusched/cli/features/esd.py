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
from gpusched.esd.config import EsdConfig
from gpusched.esd.options import EsdOption, options_of

if TYPE_CHECKING:
    from gpusched.esd.experiment import EsdWorkshop
    from gpusched.esd.jobs import EsdExperiment, EsdTodo

F = TypeVar("F", bound=Callable[..., Any])

NEEDED = ("torch", "safetensors", "numpy")  # by every analysis


def esd_options(kind: type) -> Callable[[F], F]:
    """Return a decorator that gives a command the options of the dataclass `kind`."""

    def decorate(callback: F) -> F:
        for each in reversed(list(options_of(kind))):
            callback = _click_option(each)(callback)
        return callback

    return decorate


def _click_option(each: EsdOption) -> Callable[[F], F]:
    if isinstance(each.default, bool):
        is_off = each.default  # the flag turns it off
        return click.option(
            each.flag, each.name, is_flag=True, help=each.help, callback=lambda context, parameter, on: on != is_off
        )
    default = each.default_text or (f"{each.default:g}" if isinstance(each.default, float) else each.default)
    return click.option(
        each.flag,
        type=click.Choice(each.choices, case_sensitive=False) if each.choices else type(each.default),
        metavar="|".join(each.choices) or each.metavar,
        default=each.default,
        help=f"{each.help}  [default: {default}]" if default else each.help,
    )


@click.command(
    cls=SettingsCommand,
    epilog="\b\nExamples:\n  gpusched esd --model-list atlas.csv --output-dir esd_results --max-gpus 4\n"
    "  gpusched esd --single-model gpt2 --output-dir out --plots",
)
@esd_options(EsdConfig)
@run_options
def esd(options: RunOptions, **given: Any) -> int:
    """Analyse the spectra of the weights of many models.

    Each is a job of its own. The same command again goes on where it stopped: a model is done when its results are
    complete and were made with the same options. Results, skipped.csv, esd_results_summary.csv and report.html are in
    the output directory.
    """
    from gpusched.esd.jobs import EsdExperiment

    config = EsdConfig(**given, retry_failed=options.retry_failed)
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
