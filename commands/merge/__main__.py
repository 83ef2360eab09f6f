"""`python -m gpusched.commands.merge`: read the words, merge, say what became of it. Decides nothing of a merge."""

from __future__ import annotations

import argparse
import errno
import glob
import os
import resource
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn, TextIO

from gpusched.common.natural_order import natural_key

from .groups import jobs_of_plan
from .merge import FORMATS, Job, merge
from .parts import Missing, Options, Part, shown_name
from .trouble import EXIT_CANNOT_WORK, EXIT_OK, EXIT_USAGE, Refused, clean, too_many_open

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

_CANNOT_WORK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE)


class Parser(argparse.ArgumentParser):
    """One whose complaints are as all of ours."""

    def error(self, message: str) -> NoReturn:
        raise Refused(clean(message), hint="see 'gpusched merge --help'", exit_code=EXIT_USAGE)


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="gpusched merge",
        description=f"Make one file of many parts of one kind: {' '.join(f'.{name}' for name in FORMATS)}.",
        allow_abbrev=False,
    )
    made.add_argument("parts", nargs="*", metavar="IN", help="the parts")
    made.add_argument("-o", "--output", metavar="OUT", help="the file to make; its suffix chooses the format")
    made.add_argument("--plan", metavar="FILE", help="merge what this plan of gpusched shard says, in its order")
    made.add_argument("--by", choices=("natural", "given"), default="natural", help="the order of the parts")
    made.add_argument("--key", metavar="FIELD", help="find repeated records by this field")
    made.add_argument("--on-duplicate", choices=("error", "keep-first", "keep-last"), help="what to do with them")
    made.add_argument("--expect", metavar="N", type=int, help="how many records there must be")
    made.add_argument("--sum", metavar="KEY", action="append", default=[], help="add up the values of this key")
    made.add_argument("--nan", choices=("null", "keep", "refuse"), default="null", help="NaN and Infinity in JSON")
    made.add_argument("--allow-partial", action="store_true", help="merge what is there, though parts are missing")
    made.add_argument("--allow-pickle", action="store_true", help="run the code that a .pt file names to read it")
    made.add_argument("--remove-parts", action="store_true", help="remove the parts after verification")
    made.add_argument("--overwrite", action="store_true", help="replace a file that no merge has made")
    return made


def jobs(words: argparse.Namespace) -> list[Job]:
    """What the words ask for."""
    if words.on_duplicate and not words.key and not words.plan:
        raise Refused("--on-duplicate needs --key, which names the field", exit_code=EXIT_USAGE)
    options = Options(
        key=words.key,
        on_duplicate=words.on_duplicate,
        expect=words.expect,
        sums=tuple(words.sum),
        nan=words.nan,
        allow_partial=words.allow_partial,
        allow_pickle=words.allow_pickle,
        remove_parts=words.remove_parts,
        overwrite=words.overwrite,
    )
    if words.plan is not None:
        if words.parts:
            raise Refused("--plan names the parts; none beside it", exit_code=EXIT_USAGE)
        return jobs_of_plan(words.plan, words.output, options)
    if words.output is None:
        raise Refused("no output is named", hint="-o OUT, or --plan FILE", exit_code=EXIT_USAGE)
    names = words.parts if words.by == "given" else sorted(words.parts, key=natural_key)
    if not names:
        raise Refused("no part is named", hint="gpusched merge -o all.jsonl part_*.jsonl", exit_code=EXIT_USAGE)
    described = f"the parts one after the other, {'as given' if words.by == 'given' else 'in natural order'}"
    here = os.path.dirname(os.path.abspath(words.output))
    parts = [Part(name, shown_name(name, here)) for name in names]
    absent = [part for part in parts if not os.path.lexists(part.path)]
    job = Job(words.output, parts, options, described=described)
    if absent:
        _drop_absent(job, absent)
    return [job]


def _drop_absent(job: Job, absent: Sequence[Part]) -> None:
    for part in absent:
        if glob.has_magic(part.path):
            raise Refused("no file has such a name", where=part.path, exit_code=EXIT_USAGE)
    job.missing = [Missing(job.parts.index(part), part.name, "there is no such file") for part in absent]
    job.parts = [part for part in job.parts if part not in absent]


def main(argv: Sequence[str] | None = None) -> int:
    """One command line -> its exit code."""
    code = EXIT_OK
    try:
        for job in jobs(parser().parse_args(argv)):
            code = max(code, _one(job))
    except Refused as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        return _fail(_told(error), _code(error))
    return code


def _one(job: Job) -> int:
    try:
        result = merge(job)
    except Refused as error:
        if error.exit_code != 1:
            raise
        return _fail(str(error), error.exit_code)  # of several outputs, the others are made
    except OSError as error:
        return _fail(f"{clean(job.output)}: {_told(error)}", _code(error))
    except MemoryError:
        return _fail(f"{clean(job.output)}: not enough memory for these parts", EXIT_CANNOT_WORK)
    except RecursionError:
        return _fail(f"{clean(job.output)}: the parts hold something that is nested too deeply", 1)
    for text in result.warnings:
        _say(f"gpusched: warning: {text}", sys.stderr)
    for text in result.errors:
        _say(f"gpusched: error: {text}", sys.stderr)
    _say(result.said, sys.stdout)
    return result.exit_code


def _say(text: str, stream: TextIO | None) -> None:
    """Print it, if anybody listens: what was merged is no less merged where nobody does."""
    if stream is None:  # closed before we began
        return
    try:
        print(text, file=stream, flush=True)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # else what its buffer still holds would fail again at exit
        os.close(null)


def _told(error: OSError) -> str:
    if refused := too_many_open(error):
        return str(refused)
    name = f" ({clean(error.filename)})" if error.filename else ""
    return f"{error.strerror or clean(error)}{name}"


def _code(error: OSError) -> int:
    return EXIT_CANNOT_WORK if error.errno in _CANNOT_WORK else 1


def _fail(text: str, code: int) -> int:
    _say(f"gpusched: error: {text}", sys.stderr)
    return code


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # whatever the locale, printing never raises
            stream.reconfigure(errors="replace")
    signal.signal(signal.SIGTERM, _terminated)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # parts that are taken in turn are open together
    sys.exit(main())
