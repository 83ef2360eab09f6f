"""What each shard of a plan is told and writes, and the jobs that do it. Reads and writes no file.

A command that cannot tell a shard which items are its own is refused: it would do other items, or all of them.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.core.model import Attributes, Dependency, DependencyKind, JobSpec
from gpusched.lists.joblist import JobFile
from gpusched.lists.maker import ListEntry, Maker, Spot, StatedAttributes
from gpusched.lists.sweep import Axis
from gpusched.lists.template import Template, misspelt
from gpusched.shards.plan import MERGE, TAG, Shard, ShardPlan

NAMES = ("start", "end", "count", "shard", "num_shards", "suffix", "seed", "items_file", "output_dir")
# What commands/merge makes one of, by suffix, and the library that it takes for it.
FORMATS = dict.fromkeys(("jsonl", "json", "csv", "tsv", "txt", "safetensors"), "")
FORMATS |= {"parquet": "pyarrow", "npz": "numpy", "npy": "numpy", "pt": "torch"}
LOOKED_AT = 500  # shards whose patterns are compared with each other's

_WHERE = "the command"
_NAMES_ARE = "the placeholders: " + " ".join(f"{{{name}}}" for name in NAMES)
_BARE_WORD = re.compile(rf"(?:[\w@%+=:,./-]|\{{(?:{'|'.join(NAMES)})\}})+", re.ASCII)
_WILD = re.compile(r"\[[^]]*\]|[*?]")


# ---- what each is told -----------------------------------------------------------------------------


def command_line(words: Sequence[str]) -> str:
    """The words behind `--` as one command: each stays one word for the shell. A single one is a command line as it is.

    Placeholders stay outside of quotes where the rest of the word needs none.
    """
    if len(words) == 1:
        return words[0]
    first, *rest = words
    block = first.startswith("[") and first.endswith("]") and "=" in first  # what the jobs say of themselves
    return " ".join([first if block else _word(first), *map(_word, rest)])


def _word(word: str) -> str:
    return word if _BARE_WORD.fullmatch(word) else shlex.quote(word)


def check_command(command: str, plan: ShardPlan, *, from_items: bool) -> set[str]:
    """The placeholders of a command. Raises GpuschedError where it cannot tell a shard which items are its own."""
    _refuse_misspelt(command, _WHERE)
    names = Template(command, NAMES).names
    if "items_file" in names:
        return names
    if plan.shuffle_seed is not None:
        raise _untold(
            "the items are shuffled, and only an items file can say which are a shard's", "--items {items_file}"
        )
    if plan.strategy == "strided":
        step = "range({start}, {end}, {num_shards})"
        if "num_shards" not in names or not names & {"start", "shard"}:
            why = "a strided shard is no range: without the step {num_shards} the command would do other items"
            raise _untold(why, f"let it step as {step} does, or give it {{items_file}}")
        return names
    whole = names >= {"start", "end"} or names >= {"start", "count"} or names >= {"shard", "num_shards"}
    single = all(shard.count == 1 for shard in plan.shards) and names & {"start", "shard"}
    drawn = "count" in names and names & {"seed", "suffix", "shard"} and not from_items
    if len(plan.shards) > 1 and not (whole or single or drawn):
        have = ", ".join(f"{{{name}}}" for name in NAMES if name in names) or "a command without placeholders"
        why = f"{have} does not say both where a shard's items begin and how many they are"
        raise _untold(why, "--start {start} --count {count}, or --items {items_file}")
    return names


def _untold(why: str, hint: str) -> GpuschedError:
    return GpuschedError(why, where=_WHERE, hint=hint)


def _refuse_misspelt(text: str, where: str) -> None:
    for _, word, meant in misspelt(text, NAMES):
        raise GpuschedError(f"there is no {{{word}}}; did you mean {{{meant}}}?", where=where, hint=_NAMES_ARE)
    for word in re.findall(r"(?<!\$)\{([A-Z_]+)\}", text):
        if word.lower() in NAMES:
            raise GpuschedError(
                f"there is no {{{word}}}; did you mean {{{word.lower()}}}?", where=where, hint=_NAMES_ARE
            )


def values_of(plan: ShardPlan, shard: Shard, output_dir: str) -> dict[str, str]:
    """What stands in the place of each placeholder."""
    return {
        "start": str(shard.start),
        "end": str(shard.end),
        "count": str(shard.count),
        "shard": str(shard.shard),
        "num_shards": str(len(plan.shards)),
        "suffix": shard.suffix,
        "seed": str(shard.seed),
        "items_file": shard.items_file or "",
        "output_dir": output_dir,
    }


def merge_needs(patterns: Sequence[str], output: str | None) -> set[str]:
    """The libraries that the merge takes, as far as the suffixes of its files tell.

    Raises GpuschedError for a suffix that it would refuse, once all shards have done their work.
    """
    known = " ".join(f".{name}" for name in FORMATS)
    told = "" if output is None else _suffix(output)
    if output is not None and told not in FORMATS:
        hint = f"a directory that is there, or a file that ends in one of {known}"
        raise GpuschedError("its suffix says no format that can be merged", where=f"--merge-output {output}", hint=hint)
    found = {told} if told else set()
    for pattern in patterns:
        suffix = _suffix(pattern)
        if not suffix or re.search(r"[][*?{}]", suffix):
            continue
        if suffix not in FORMATS:
            raise GpuschedError(f".{suffix} cannot be merged", where=f"--merge {pattern}", hint=f"what can: {known}")
        if told and suffix != told:
            raise GpuschedError(f"is .{suffix}, and --merge-output .{told}", where=f"--merge {pattern}")
        found.add(suffix)
    return {FORMATS[suffix] for suffix in found} - {""}


def refuse_one_name(patterns: Sequence[str], directory: str) -> None:
    """Refuse patterns whose outputs would be one file of the directory that all are put into."""
    names: dict[str, str] = {}
    for pattern in patterns:
        name = os.path.basename(pattern)
        if not _WILD.search(name) and name in names:
            raise GpuschedError(
                f"its output would have the same name as that of {names[name]}",
                where=f"--merge {pattern}",
                hint=f"without --merge-output {directory} each lies beside its parts; or give the files other names",
            )
        names[name] = pattern


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower().removeprefix(".")


def with_outputs(plan: ShardPlan, patterns: Sequence[str], output_dir: str, cwd: str) -> ShardPlan:
    """The plan with the files that each shard writes, as patterns of absolute paths; nothing in values is a wildcard.

    Raises GpuschedError where two shards would be said to write the same file.
    """
    if not patterns:
        return plan
    templates = []
    for pattern in patterns:
        _refuse_misspelt(pattern, f"--merge {pattern}")
        templates.append(Template(pattern, NAMES))
    shards = []
    for shard in plan.shards:
        values = {name: glob.escape(value) for name, value in values_of(plan, shard, output_dir).items()}
        paths = (os.path.expanduser(template.fill(values)) for template in templates)
        shards.append(replace(shard, outputs=tuple(os.path.join(glob.escape(cwd), path) for path in paths)))
    for n, pattern in enumerate(patterns):
        _refuse_shared([(shard.suffix, shard.outputs[n]) for shard in shards], pattern)
    return replace(plan, shards=tuple(shards))


def _refuse_shared(outputs: Sequence[tuple[str, str]], pattern: str) -> None:
    """A file must be that of one shard: `*{shard}.pt` would take 11.pt for shard 1 and for shard 11.

    Of a pattern that has its shard's suffix between other characters, only files that have it so are taken.
    """
    if len(outputs) > 1 and len({path for _, path in outputs}) < len(outputs):
        raise GpuschedError(
            "all shards would write the same files", where=f"--merge {pattern}", hint="{suffix} in it tells them apart"
        )
    shown = outputs[:LOOKED_AT]
    names = [_WILD.sub(lambda found: found[0][1] if found[0][1:-1] else "", path) for _, path in shown]
    for i, (suffix, path) in enumerate(shown):
        matches = re.compile(_pattern(path)).fullmatch
        bears = re.compile(rf"(?<![A-Za-z0-9]){re.escape(suffix)}(?![A-Za-z0-9])").search
        other = next(
            (j for j, name in enumerate(names) if j != i and matches(name) and (bears(name) or not bears(path))), None
        )
        if other is not None:
            raise GpuschedError(
                f"the files of shard {other} would be taken for those of shard {i} too",
                where=f"--merge {pattern}",
                hint="something other than a wildcard has to stand beside the placeholder, or use --suffix shard",
            )


def _pattern(path: str) -> str:
    """A pattern of paths -> a regular expression; wildcards match no slash, but ** does."""
    parts = []
    for piece in re.split(r"(\*\*/?|\[[^]]*\]|[*?])", path):
        if piece.startswith("**"):
            parts.append(".*")
        elif piece in ("*", "?"):
            parts.append("[^/]*" if piece == "*" else "[^/]")
        elif piece.startswith("[") and piece.endswith("]") and len(piece) > 2:
            parts.append(re.escape(piece[1]) if len(piece) == 3 else ".")
        else:
            parts.append(re.escape(piece))
    return "".join(parts)


# ---- the jobs --------------------------------------------------------------------------------------


def jobs(
    plan: ShardPlan,
    command: str,
    output_dir: str,
    merge_command: str | None,
    *,
    merge_occurrence: int = 1,
    options: Mapping[str, Any],
) -> JobFile:
    """The job of each shard, in their order, and the one that merges behind them. Line n is that of shard n - 1.

    `options` are those of the maker: force, strip_gpu_env, gpus.
    """
    maker = Maker(**options)
    values = [values_of(plan, shard, output_dir) for shard in plan.shards]
    rows = tuple(tuple(own[name] for name in NAMES) for own in values)
    spot = Spot(1)
    maker.add(ListEntry(command, spot, [StatedAttributes("tag", TAG, spot)], [Axis(NAMES, rows)], block=True))
    made = maker.finish()
    if made.errors:
        return made
    if len(made.specs) != len(plan.shards):
        raise GpuschedError("it only sets something up, and does nothing", where=_WHERE)
    if any(spec.occurrence > 1 for spec in made.specs):
        raise _untold("it is the same for several shards, which would do the same", "--seed {seed}, --out {suffix}")
    specs = []
    for shard, spec in zip(plan.shards, made.specs, strict=True):
        own = replace(spec.attributes, name=shard.job_name, items=shard.count)
        specs.append(replace(spec, line=shard.shard + 1, attributes=own))
    if merge_command is not None:
        kind = DependencyKind.ENDED if plan.merge and plan.merge.allow_partial else DependencyKind.SUCCEEDED
        # Whatever modules lie in the directory, the stage imports none of them. A merge in another way is another job.
        env = ((b"PYTHONSAFEPATH", b"1"), (b"GPUSCHED_MERGE", _way(plan)))
        own = Attributes(gpus=0, name=MERGE, after=(Dependency(kind, (TAG,)),), env=env)
        text = merge_command.encode("utf-8", "surrogateescape")
        specs.append(JobSpec(text, text, len(specs) + 1, merge_occurrence, own))
    return JobFile(tuple(specs), made.findings, True)


def _way(plan: ShardPlan) -> bytes:
    """Stands for how the shards' outputs are made one."""
    way = repr((plan.merge, [shard.outputs for shard in plan.shards]))
    return hashlib.blake2b(way.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest().encode()


def merge_command(python: str, plan_path: str, output: str | None) -> str:
    """What the merge runs."""
    words = [python, "-m", "gpusched.commands.merge", "--plan", plan_path]
    return shlex.join([*words, *(["--output", output] if output else [])])
