"""`gpusched shard`: one script that takes a range or a list of items, run in shards on the GPUs that are free."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from gpusched.cli.features.table import row_options, table_options
from gpusched.cli.options import SettingsCommand, print_json, print_page
from gpusched.cli.run.options import RunOptions, run_options
from gpusched.cli.run.session import session
from gpusched.cli.run.source import accept
from gpusched.common.errors import EXIT_OK
from gpusched.config.layers import with_defaults
from gpusched.shards.merge_options import MergeOptions, shard_rows
from gpusched.shards.plan import SplitOptions
from gpusched.shards.request import ShardRequest

if TYPE_CHECKING:
    from gpusched.shards.prepare import PlannedShards


class ShardCommand(SettingsCommand):
    """A command that ends in another command, behind `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:end])
        if not ctx.resilient_parsing:
            if ctx.params["command"]:
                hint = "put a pattern for --items in quotes" if end < len(args) else "put the command behind --"
                word = clean_word(ctx.params["command"][0])
                raise click.UsageError(f"unexpected argument {word!r}; {hint}", ctx)
            if not args[end + 1 :]:
                raise click.UsageError("the command is missing: -- python run.py --start {start} --count {count}", ctx)
        ctx.params["command"] = tuple(args[end + 1 :])
        return rest


def clean_word(word: str) -> str:
    from gpusched.common.text import clean, mask_secrets

    return clean(mask_secrets(word))[:80]


@click.command(
    cls=ShardCommand,
    epilog="\b\nExamples:\n"
    "  gpusched shard --total 1000 -- python run.py --start {start} --count {count} --seed {seed} --out {suffix}.pt\n"
    "  gpusched shard --items prompts.jsonl --merge 'out/{suffix}.jsonl' --merge-output all.jsonl -- \\\n"
    "      python generate.py {items_file} --output out/{suffix}.jsonl",
)
@click.argument("command", nargs=-1, metavar="-- COMMAND...")
@table_options(ShardRequest)
@table_options(SplitOptions)
@row_options(shard_rows())
@run_options
@click.option("--force", is_flag=True, help="Go on although the command looks wrong.")
def shard(options: RunOptions, force: bool, **values: Any) -> int:
    """Run a script on many items in shards, and merge what they write.

    COMMAND is run once for each shard, with the values of the shard in place of {start} {end} {count} {shard}
    {num_shards} {suffix} {seed} {items_file} {output_dir}. The same command again resumes: shards that are done are
    skipped.
    """
    from gpusched.shards.results import read_details
    from gpusched.shards.start import ShardStart

    start = ShardStart(
        _request(values),
        with_defaults(options.loaded, "shard"),
        force=force,
        retry_failed=options.retry_failed,
        notify=options.notify,
    )
    with start.open_devices() as devices:
        planned = start.plan(devices)
        accept(planned.jobs, "shard", options.loaded.settings, **options.accepting)
        if options.dry_run:
            return _print_plan(planned, as_json=options.as_json)
        return start.run(planned, devices, session(options, read_details=read_details))


def _request(values: dict[str, Any]) -> ShardRequest:
    """Return the request of the values of the options."""
    split = SplitOptions(**{field.name: values.pop(field.name) for field in fields(SplitOptions)})
    merge = MergeOptions(**{row.name: values.pop(row.name) for row in shard_rows()})
    return ShardRequest(**values, split=split, merge=None if merge == MergeOptions() else merge)


def _print_plan(planned: PlannedShards, *, as_json: bool) -> int:
    """Print what each shard would do."""
    from gpusched.operations.queues import current_directory
    from gpusched.views.features.shard_plan import page

    if as_json:
        print_json(planned.document())
    else:
        spans, queue = planned.plan.spans, planned.queue_dir.path
        print_page(page(planned.jobs.specs, spans, planned.states, queue, current_directory()))
    return EXIT_OK
