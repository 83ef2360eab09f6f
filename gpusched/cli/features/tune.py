"""`gpusched tune`: the batch size, workers and threads of a pool, found by trials."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from gpusched.cli.features.table import TableCommand, table_options
from gpusched.cli.options import print_json, print_page, say
from gpusched.cli.run.options import RunOptions, run_options
from gpusched.cli.run.session import session
from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED
from gpusched.pool.tuner.options import TuneOptions
from gpusched.views.lines import IMPORTANT, EventLines

if TYPE_CHECKING:
    from gpusched.dispatcher import Observer
    from gpusched.pool.tuner.start import Tuning


class TrialLines(EventLines):
    """Event lines with a line for each trial, when it has ended."""

    refresh_s: float | None = 0.5
    loud = (*IMPORTANT, "waiting")

    def __init__(self, tell: Callable[[], None], *, quiet: bool) -> None:
        super().__init__(sys.stderr, quiet=quiet)
        self._tell = tell

    def frame(self, frame: object) -> None:
        self._tell()


@click.command(
    cls=TableCommand,
    epilog="\b\nExample:\n  gpusched tune captions.py:Caption --items items.txt --dataset-size 50000 -o captions.yaml\n"
    "  gpusched pool --config captions.yaml",
)
@click.argument("worker", metavar="FILE.py:NAME", default="")
@click.option("-o", "--output", metavar="FILE", default="pool.yaml", help="Write the settings into this YAML file.")
@table_options(TuneOptions)
@run_options
def tune(options: RunOptions, **values: Any) -> int:
    """Find the batch size and the workers of a pool.

    Those that handle most items a second are found by trials, and the threads of each worker, too. Each batch size is
    tried in a fresh process on a GPU of its own. The result is written into the `optimization:` block of FILE; nothing
    else in it changes. Whatever ends it, the same command goes on with what was measured.
    """
    from gpusched.pool.tuner.described import tunings

    found = tunings(TuneOptions(**values))
    documents: dict[str, dict[str, Any]] = {}
    code = EXIT_OK
    for each in found:
        if len(found) > 1:
            say(f"{each.script}:")
        own_code, documents[each.script] = _tune_one(each, options)
        code = max(code, own_code)
    if options.as_json:
        print_json(documents[""] if list(documents) == [""] else {"pools": documents})
    return code


def _tune_one(wanted: TuneOptions, options: RunOptions) -> tuple[int, dict[str, Any]]:
    """Tune one pool, or say what would be tried, and return the exit code with the document for programs."""
    from gpusched.pool.tuner import report
    from gpusched.pool.tuner.start import Tuning

    tuning = Tuning(wanted, options.loaded, notify=options.notify)
    if options.dry_run:
        plan, known = tuning.plan_only()
        lines, document, code = report.dry_run_lines(plan, known), report.dry_run_document(plan, known), EXIT_OK
    else:
        code, found = tuning.run(session(options)._replace(watch=lambda queue: _watch(tuning)))
        if found is None:
            if tuning.problem:
                say(f"error: {tuning.problem}")
            return code or EXIT_SOME_FAILED, {"problem": tuning.problem or None}
        lines, document = report.report_lines(found, tuning.options.path), report.report_document(found)
        code = EXIT_OK if found.result.best else EXIT_SOME_FAILED
    if not options.as_json:
        print_page(lines)
    return code, document


@contextmanager
def _watch(tuning: Tuning) -> Iterator[Observer | None]:
    shown = set(tuning.trials())

    def tell() -> None:
        for setting, trial in tuning.trials().items():
            if setting not in shown:
                shown.add(setting)
                say(str(trial))

    with closing(TrialLines(tell, quiet=True)) as lines:
        yield lines
    tell()
