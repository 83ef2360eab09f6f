"""The command of a sharded script: its placeholders, and their values for each shard.

A command that does not say which items belong to a shard is refused: it would process other items, or all of them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from gpusched.common import look_alikes
from gpusched.common.errors import GpuschedError
from gpusched.lists.template import Template, unfilled
from gpusched.shards.plan import Shard, ShardPlan

NAMES = ("start", "end", "count", "shard", "num_shards", "suffix", "seed", "items_file", "output_dir")
WHERE = "the command"

_PLACEHOLDERS = "the placeholders: " + " ".join(f"{{{name}}}" for name in NAMES)
_BARE_WORD = re.compile(rf"(?:[\w@%+=:,./-]|\{{(?:{'|'.join(NAMES)})\}})+", re.ASCII)


def command_line(words: Sequence[str]) -> str:
    """Return the words behind `--` as a command line for the shell. A single word is a command line already.

    Placeholders stay outside of quotes where the rest of the word needs none.
    """
    if len(words) == 1:
        return words[0]
    first, *rest = words
    is_block = first.startswith("[") and first.endswith("]") and "=" in first  # attributes of the jobs
    return " ".join([first if is_block else _quote(first), *map(_quote, rest)])


def _quote(word: str) -> str:
    if look_alikes.find(word)[1] and not re.search(r"[\0-,;-?\[-^`{-~]", word):
        return word  # no quotes: they would hide it from the findings
    return word if _BARE_WORD.fullmatch(word) else shlex.quote(word)


def check_command(command: str, plan: ShardPlan, *, from_items: bool) -> set[str]:
    """Return the placeholders of a command. Raises GpuschedError if it does not say which items belong to a shard."""
    refuse_misspelt(command, WHERE)
    names = Template(command, NAMES).names
    if "items_file" in names:
        return names
    has_range = names >= {"start", "end"} or names >= {"start", "count"} or names >= {"shard", "num_shards"}
    has_item = all(shard.count == 1 for shard in plan.shards) and names & {"start", "shard"}
    has_sample = "count" in names and names & {"seed", "suffix", "shard"} and not from_items
    problem = hint = ""
    if plan.shuffle_seed is not None:
        problem = "the items are shuffled, so only an items file can say which of them belong to a shard"
        hint = "--items {items_file}"
    elif plan.strategy == "strided" and ("num_shards" not in names or not names & {"start", "shard"}):
        problem = "a strided shard is no range: without the step {num_shards} the command would process other items"
        hint = "use range({start}, {end}, {num_shards}) as in Python, or {items_file}"
    elif plan.strategy != "strided" and len(plan.shards) > 1 and not (has_range or has_item or has_sample):
        used = ", ".join(f"{{{name}}}" for name in NAMES if name in names) or "a command without placeholders"
        problem = f"{used} does not say both where a shard's items begin and how many they are"
        hint = "--start {start} --count {count}, or --items {items_file}"
    if problem:
        raise GpuschedError(problem, where=WHERE, hint=hint)
    return names


def refuse_misspelt(text: str, where: str) -> None:
    """Raise GpuschedError for a word in braces that is nearly a placeholder."""
    pairs = [(word, meant) for _, word, meant in unfilled(text, NAMES) if meant]
    pairs += [(word, word.lower()) for word in re.findall(r"(?<!\$)\{([A-Z_]+)\}", text) if word.lower() in NAMES]
    for word, meant in pairs:
        raise GpuschedError(f"there is no {{{word}}}; did you mean {{{meant}}}?", where=where, hint=_PLACEHOLDERS)


def placeholder_values(plan: ShardPlan, shard: Shard, output_dir: str) -> dict[str, str]:
    """Return the value of each placeholder for a shard."""
    values = {name: str(getattr(shard, name)) for name in ("start", "end", "count", "shard", "suffix", "seed")}
    others = {"num_shards": str(len(plan.shards)), "items_file": shard.items_file or "", "output_dir": output_dir}
    return values | others
