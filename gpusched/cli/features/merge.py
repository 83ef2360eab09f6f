"""`gpusched merge`: its options, and then the stage commands/merge in the place of this process. Merges nothing."""

from __future__ import annotations

import os
import sys

import click

STAGE = "gpusched.commands.merge"


@click.command(
    epilog="\b\nExamples:\n  gpusched merge -o all.jsonl out_rank_*.jsonl\n"
    "  gpusched merge -o all.csv part_*.csv --key id --on-duplicate keep-first --expect 1000",
)
@click.argument("parts", nargs=-1, metavar="IN...", type=click.UNPROCESSED)
@click.option("-o", "--output", metavar="OUT", help="The file to make; its suffix chooses the format.")
@click.option("--plan", metavar="FILE", help="Merge what this plan of gpusched shard says, in the order of its items.")
@click.option(
    "--by",
    type=click.Choice(("natural", "given")),
    help="Put the parts in natural order (gpu_2 before gpu_10), or as they are named.  [default: natural]",
)
@click.option("--key", metavar="FIELD", help="Find repeated records by this field.")
@click.option(
    "--on-duplicate",
    type=click.Choice(("error", "keep-first", "keep-last")),
    help="Refuse repeated records, or keep the first or the last of them.  [default: error]",
)
@click.option("--expect", metavar="N", type=int, help="Fail unless there are N records.")
@click.option("--sum", "sums", metavar="KEY", multiple=True, help="Add up the numbers under this key; may be repeated.")
@click.option(
    "--nan",
    type=click.Choice(("null", "keep", "refuse")),
    help="Write NaN and Infinity in JSON as null, as they are, or leave their records out.  [default: null]",
)
@click.option("--allow-partial", is_flag=True, help="Merge what is there, though parts are missing or too short.")
@click.option("--allow-pickle", is_flag=True, help="Load .pt files whole: this runs the code that they name.")
@click.option("--remove-parts", is_flag=True, help="Remove the parts once the output is complete and verified.")
@click.option("--overwrite", is_flag=True, help="Replace a file that no merge has made, or a complete one.")
def merge(
    parts: tuple[str, ...],
    output: str | None,
    plan: str | None,
    by: str | None,
    key: str | None,
    on_duplicate: str | None,
    expect: int | None,
    sums: tuple[str, ...],
    nan: str | None,
    allow_partial: bool,
    allow_pickle: bool,
    remove_parts: bool,
    overwrite: bool,
) -> int:
    """Make one file of many parts.

    Formats, by suffix: .jsonl .json .csv .tsv .txt .parquet .npz .npy .safetensors .pt. What is wrong in a part is
    named and left out, and the exit code is then 1; parts that do not go together are refused. Parts are kept.
    """
    from gpusched.config.layers import working_directory

    working_directory()
    values = {
        "--output": output,
        "--plan": plan,
        "--by": by,
        "--key": key,
        "--on-duplicate": on_duplicate,
        "--expect": expect,
        "--nan": nan,
    }
    switches = {
        "--allow-partial": allow_partial,
        "--allow-pickle": allow_pickle,
        "--remove-parts": remove_parts,
        "--overwrite": overwrite,
    }
    words = [f"{flag}={value}" for flag, value in values.items() if value is not None]
    words += [f"--sum={key}" for key in sums]
    words += [flag for flag, given in switches.items() if given]
    sys.stdout.flush()
    sys.stderr.flush()
    # -P: a file of the working directory is no module of ours. Python 3.10 does not know it.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    os.execv(sys.executable, [sys.executable, *safe, "-m", STAGE, *words, "--", *parts])
