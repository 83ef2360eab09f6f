"""`gpusched pool`: workers that load their models once, over the items of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpusched.cli.features.table import TableCommand, table_options
from gpusched.cli.options import print_json
from gpusched.cli.run.options import RunOptions, run_options
from gpusched.cli.run.session import session
from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.common.text import clean
from gpusched.pool.options import PoolOptions

EXPORT = "export"  # in the place of a worker, whose name has a colon

if TYPE_CHECKING:
    from gpusched.operations.run.run import RunSession
    from gpusched.pool.start import PoolStart
    from gpusched.pool.summary import PoolSummary


@click.command(
    cls=TableCommand,
    epilog="\b\nExamples:\n  gpusched pool captions.py:Caption --items items.txt --output-dir out\n"
    "  gpusched pool --command ./caption --items 'in/*.mp4' --output-dir out --cpu-workers auto",
)
@click.argument("worker", metavar="FILE.py:NAME|export", default="")
@table_options(PoolOptions)
@click.option("--config", metavar="FILE", help="Read worker, items, output_dir and optimization: from this YAML file.")
@click.option("--script", metavar="NAME", multiple=True, help="Run this pool of the file only.  [default: all]")
@run_options
def pool(options: RunOptions, config: str | None, script: tuple[str, ...], **values: Any) -> int:
    """Run workers over many items, each with its models loaded once.

    NAME is a class that derives from gpusched.Worker, or a function of an item. Each worker is a process that loads its
    models once; more are added to a GPU while memory and throughput allow. Each item gets one result or one error. The
    same command again resumes; `gpusched pool export --output-dir out` writes the results that there are by now.
    """
    from gpusched.pool.config import read_pools
    from gpusched.pool.start import PoolStart, export_results

    if options.retry_failed:
        raise GpuschedError("tries jobs again, and a pool has items", where="--retry-failed", hint="--retry-errors")
    is_export = values["worker"] == EXPORT
    values["worker"] = values["worker"] * (not is_export)
    pools = {"": (PoolOptions(**values), options.loaded)}
    if config is not None:
        source = click.get_current_context().get_parameter_source
        stated = {name: value for name, value in values.items() if source(name) is not ParameterSource.DEFAULT}
        pools = read_pools(config, script, stated, options.loaded)
    elif script:
        raise GpuschedError("names a pool of a file", where="--script", hint="--config FILE")
    if is_export:
        ended = {name: (export_results(own, loaded.settings), EXIT_OK) for name, (own, loaded) in pools.items()}
        return print_pools(ended, as_json=options.as_json)
    starts = {name: PoolStart(*each, notify=options.notify, is_dry=options.dry_run) for name, each in pools.items()}
    if options.dry_run:
        click.echo("\n".join(line for start in starts.values() for line in start.dry_run()))
        return EXIT_OK
    ended = run_all(starts, session(options)._replace(summarize=lambda queue, code: None))
    return print_pools(ended, as_json=options.as_json)


def run_all(starts: Mapping[str, PoolStart], session: RunSession) -> dict[str, tuple[PoolSummary, int]]:
    """Run pools one after the other, until one is ended; return their summaries and exit codes."""
    ended = {}
    for name, start in starts.items():
        code = start.run(session)
        ended[name] = start.summary, code
        if code not in (EXIT_OK, EXIT_SOME_FAILED):
            break
    return ended


def print_pools(ended: Mapping[str, tuple[PoolSummary, int]], *, as_json: bool) -> int:
    """Print the summaries of pools, and return the worst of their exit codes."""
    worst = max(code for _, code in ended.values())
    documents = {name: summary.document(code) for name, (summary, code) in ended.items()}
    if as_json:
        print_json(documents.get("", {"exit_code": worst, "pools": documents}))
        return worst
    for name, (summary, _) in ended.items():
        click.echo("\n".join([*filter(None, [clean(name)]), *summary.lines()]))
    return worst
