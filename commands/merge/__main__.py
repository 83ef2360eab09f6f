"""`python -m gpusched.commands.merge`: read the command line, merge, print the result. Decides nothing of a merge."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, TextIO

from gpusched.common import errors
from gpusched.common.option_table import add_arguments
from gpusched.common.text import natural_key
from gpusched.shards.merge_options import MERGE_FORMATS, MergeOptions

from .merge import merge
from .parts.model import MergePart, MergeRefused, MergeTask, name_from, shown
from .write.publish import MergeResult

_ABOUT = f"""Make one file of many parts. Formats, by suffix: {" ".join(f".{name}" for name in MERGE_FORMATS)}.
A record or part that cannot be read is named and left out: the exit code is then 1. Parts that do not go together are
refused. Parts are kept."""
_EXAMPLES = """examples:
  gpusched merge -o all.jsonl out_rank_*.jsonl
  gpusched merge -o all.csv part_*.csv --key id --on-duplicate keep-first --expect 1000"""


class MergeParser(argparse.ArgumentParser):
    """A parser of the table of options, whose errors look like all errors of gpusched."""

    def __init__(self) -> None:
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__("gpusched merge", None, _ABOUT, _EXAMPLES, formatter_class=raw, allow_abbrev=False)
        self.add_argument("parts", nargs="*", metavar="IN", help="the parts")
        add_arguments(self, MergeOptions)

    def error(self, message: str) -> NoReturn:
        raise MergeRefused(shown(message), hint="see 'gpusched merge --help'", exit_code=errors.EXIT_USAGE)


def run(argv: Sequence[str] | None) -> list[MergeResult]:
    """Merge what a command line asks for."""
    words: dict[str, Any] = vars(MergeParser().parse_args(argv))
    paths: list[str] = words.pop("parts")
    words |= {name: tuple(word) for name, word in words.items() if isinstance(word, list)}
    options = MergeOptions(**words)
    if options.plan is not None and not paths:
        from .plan import run_plan

        return run_plan(options.plan, options)
    return merge([_read_task(paths, options)])


def _read_task(paths: Sequence[str], options: MergeOptions) -> MergeTask:
    problems = {
        "--plan names the parts; none beside it": options.plan is not None,
        "--on-duplicate needs --key, which names the field": options.on_duplicate != "error" and not options.key,
        "no output is named: -o OUT, or --plan FILE": not options.output,
        "no part is named: gpusched merge -o all.jsonl part_*.jsonl": not paths,
    }
    for why, holds in problems.items():
        if holds:
            raise MergeRefused(why, exit_code=errors.EXIT_USAGE)
    output = str(options.output)
    task = MergeTask(output, [], options, order_text=f"the parts one after the other (--by {options.by})")
    for path in sorted(paths, key=natural_key) if options.by == "natural" else paths:
        name = name_from(os.path.dirname(os.path.abspath(output)), path)
        if os.path.lexists(path):
            task.parts.append(MergePart(path, name))
        else:
            task.missing.append(MergePart(path, name, skipped="there is no such file"))
    return task


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, and return its exit code."""
    try:
        results = run(argv)
    except errors.GpuschedError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return errors.EXIT_INTERRUPTED
    for result in results:
        for text in result.warnings:
            _print(f"gpusched: warning: {text}", sys.stderr)
        for text in result.errors:
            _fail(text, result.code)
        if result.summary:
            _print(result.summary, sys.stdout)
    return max(result.code for result in results)


def _fail(text: str, code: int) -> int:
    _print(f"gpusched: error: {text}", sys.stderr)
    return code


def _print(text: str, stream: TextIO | None) -> None:
    """Print a line if anybody listens; a merge is done all the same where nobody does."""
    if stream is None:  # closed before we began
        return
    try:
        print(text, file=stream, flush=True)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # else the rest of its buffer would fail again at exit
        os.close(null)


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(errors.EXIT_TERMINATED)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # whatever the locale, printing never raises
            stream.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(main())
