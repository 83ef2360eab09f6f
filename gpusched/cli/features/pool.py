"""`gpusched pool`: workers that load their models once, over the items of a file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from gpusched.cli.features.table import TableCommand, table_options
from gpusched.cli.options import print_json, say
from gpusched.cli.run.options import RunOptions, run_options
from gpusched.cli.run.session import session
from gpusched.pool.options import PoolOptions


@click.command(
    cls=TableCommand,
    epilog="\b\nExamples:\n  gpusched pool captions.py:Caption --items items.txt --output-dir out\n"
    "  gpusched pool --command ./caption --items 'in/*.mp4' --output-dir out --cpu-workers auto",
)
@click.argument("worker", metavar="FILE.py:NAME", default="")
@table_options(PoolOptions)
@click.option("--config", metavar="FILE", help="Read worker, items, output_dir and optimization: from this YAML file.")
@run_options
def pool(options: RunOptions, config: str | None, **values: Any) -> int:
    """Run a worker over many items, on the GPUs that are free.

    NAME is a class that derives from gpusched.Worker, or a function of an item. Each worker is a process that loads its
    models once; more are added to a GPU while memory and throughput allow. Each item gets one result or one error. The
    same command again resumes.
    """
    from gpusched.pool.config import with_config
    from gpusched.pool.start import PoolStart

    pool_options, loaded = PoolOptions(**values), options.loaded
    if config is not None:
        source = click.get_current_context().get_parameter_source
        stated = {name: value for name, value in values.items() if source(name) is not ParameterSource.DEFAULT}
        pool_options, loaded = with_config(config, stated, loaded)
    start = PoolStart(pool_options, loaded, notify=(lambda text: None) if options.quiet else say)
    code = start.run(replace(session(options), summarize=lambda queue, code: None))
    if options.as_json:
        print_json(start.summary.document(code))
    else:
        click.echo("\n".join(start.summary.lines()))
    return code
