"""`gpusched shard`: one script that takes a range or a list of items, run in shards on the GPUs that are free.

Here are its options; what comes of them is in shard_start.
"""

from __future__ import annotations

import os
from dataclasses import replace

import click

from gpusched.cli.options import SettingsCommand
from gpusched.cli.run.options import RunOptions, run_options
from gpusched.config.run_settings import RUN_SETTINGS, with_defaults


class ShardCommand(SettingsCommand):
    """A command whose last words are a command themselves, behind `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        if not ctx.resilient_parsing:
            stray = ctx.params["command"]
            if stray:
                more = " A glob for --items goes in quotes." if at < len(args) else " The command comes behind --."
                raise click.UsageError(f"What is {clean_word(stray[0])!r}?{more}", ctx)
            if not args[at + 1 :]:
                raise click.UsageError("The command is missing: -- python run.py --start {start} --count {count}", ctx)
        ctx.params["command"] = tuple(args[at + 1 :])
        return rest


def clean_word(word: str) -> str:
    from gpusched.common.text import clean, mask_secrets

    return clean(mask_secrets(word))[:80]


AT_LEAST_ONE = click.IntRange(min=1)


@click.command(
    cls=ShardCommand,
    epilog="\b\nExamples:\n"
    "  gpusched shard --total 1000 -- python run.py --start {start} --count {count} --seed {seed} --out {suffix}.pt\n"
    "  gpusched shard --items prompts.jsonl --merge 'out/{suffix}.jsonl' --merge-output all.jsonl -- \\\n"
    "      python generate.py {items_file} --output out/{suffix}.jsonl",
)
@click.argument("command", nargs=-1, metavar="-- COMMAND...")
@click.option("--total", metavar="N", type=click.IntRange(min=0), help="Share out N items, which are only counted.")
@click.option(
    "--items",
    metavar="FILE",
    help="Share out the items of this file: its lines, .jsonl, the records of .csv or .tsv, the rows of .parquet; or "
    "the files that a glob in quotes matches.",
)
@click.option("--num-shards", metavar="N", type=AT_LEAST_ONE, help="Make N shards.")
@click.option("--shard-size", metavar="N", type=AT_LEAST_ONE, help="Make shards of at most N items.")
@click.option(
    "--shards-per-gpu",
    metavar="N",
    type=AT_LEAST_ONE,
    default=4,
    help="Without these two, make N shards for each GPU: a slow one, or a GPU that is lost, then costs little. 1 is "
    "right for a script that loads for minutes.  [default: 4]",
)
@click.option(
    "--min-items-per-shard",
    metavar="N",
    type=AT_LEAST_ONE,
    default=4,
    help="Make fewer shards where they would have fewer items than N, down to one.  [default: 4]",
)
@click.option("--strided", is_flag=True, help="Give each shard every n-th item, not a range.")
@click.option(
    "--weights",
    metavar="COLUMN",
    help="Cut so that shards weigh the same, by this column of --items; size: by the sizes of the files.",
)
@click.option(
    "--shuffle", metavar="SEED", type=click.IntRange(min=0), help="Shuffle the items before they are shared out."
)
@click.option(
    "--suffix",
    metavar="gpu|shard|TEXT",
    default="",
    help="Say what {suffix} is: gpu_0, shard_00000, or a text of yours with {shard} in it.  [default: gpu where there "
    "are no more shards than GPUs, else shard]",
)
@click.option(
    "--seed-base", metavar="N", type=int, default=0, help="Draw the seeds of the shards from this one.  [default: 0]"
)
@click.option("--output-dir", metavar="DIR", help="Make this directory; {output_dir} stands for it.")
@click.option(
    "--merge",
    "merge",
    metavar="PATTERN",
    multiple=True,
    help="Merge what the shards have written, once all have succeeded: the files that a shard writes, with wildcards "
    "and placeholders. May be repeated.",
)
@click.option("--merge-output", metavar="FILE", help="Merge into this file.")
@click.option("--merge-sum", metavar="KEY", multiple=True, help="Add up what stands under this key. May be repeated.")
@click.option("--merge-key", metavar="FIELD", help="Tell by this field whether an item comes twice.")
@click.option(
    "--merge-on-duplicate",
    type=click.Choice(["error", "keep-first", "keep-last"]),
    default="error",
    help="Say what to do with an item that comes twice.  [default: error]",
)
@click.option(
    "--allow-partial", is_flag=True, help="Merge what there is once all shards have ended, though some failed."
)
@run_options
@click.option("--force", is_flag=True, help="Go on although the command looks wrong.")
def shard(
    command: tuple[str, ...],
    options: RunOptions,
    force: bool,
    total: int | None,
    items: str | None,
    num_shards: int | None,
    shard_size: int | None,
    shards_per_gpu: int,
    min_items_per_shard: int,
    strided: bool,
    weights: str | None,
    shuffle: int | None,
    suffix: str,
    seed_base: int,
    output_dir: str | None,
    merge: tuple[str, ...],
    merge_output: str | None,
    merge_sum: tuple[str, ...],
    merge_key: str | None,
    merge_on_duplicate: str,
    allow_partial: bool,
) -> int:
    """Run a script on many items in shards, and merge what they write.

    COMMAND is run once for each shard, with the shard's values in the place of {start} {end} {count} {shard}
    {num_shards} {suffix} {seed} {items_file} {output_dir}. The same command again goes on: a shard that is done is
    not done again.
    """
    from gpusched.shards.plan import Merge, ShardWish
    from gpusched.shards.start import ShardRequest, ShardStart

    if (total is None) == (items is None):
        raise click.UsageError("Either --total N or --items FILE says what there is to do.")
    if num_shards and shard_size:
        raise click.UsageError("Either --num-shards or --shard-size, not both.")
    if strided and weights:
        raise click.UsageError("Either --strided or --weights, not both.")
    if weights and items is None:
        raise click.UsageError("--weights goes with --items.")
    if not merge and (merge_output or merge_sum or merge_key or allow_partial):
        raise click.UsageError("Without --merge PATTERN nothing is merged.")
    wish = ShardWish(num_shards, shard_size, shards_per_gpu, min_items_per_shard, strided, shuffle, suffix, seed_base)
    output = os.path.abspath(os.path.expanduser(merge_output)) if merge_output else None
    wanted = Merge(output, merge_sum, merge_key, merge_on_duplicate, allow_partial) if merge else None
    given = ShardRequest(command, total, items, wish, weights, output_dir, merge, wanted, _typed(command))
    return ShardStart(given, replace(options, loaded=with_defaults(options.loaded, "shard")), force).go()


def _typed(command: tuple[str, ...]) -> list[str]:
    """The words that were typed, without the options that all verbs have."""
    ctx = click.get_current_context()
    others = {*RUN_SETTINGS, "command", "retry_failed", "dry_run", "as_json", "verbose", "quiet", "force"}
    words = ["shard"]
    for param in ctx.command.params:
        name = str(param.name)
        if name in others or ctx.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        value = ctx.params[name]
        if value is True:
            words.append(param.opts[0])
            continue
        for one in value if isinstance(value, tuple) else (value,):
            words += [param.opts[0], str(one)]
    return [*words, "--", *command]
