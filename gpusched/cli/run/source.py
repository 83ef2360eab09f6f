"""The source of jobs of `run` and `check`: a list, a stream, or a command with parameters. Submits nothing."""

from __future__ import annotations

import functools
import os
import re
import select
import shlex
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import click

from gpusched.cli.completion import complete_files
from gpusched.cli.options import F
from gpusched.common.errors import GpuschedError
from gpusched.common.processes import has_program
from gpusched.config.layers import working_directory

if TYPE_CHECKING:
    from gpusched.config.settings import Settings
    from gpusched.core.jobs.job import Attributes
    from gpusched.lists.joblist import JobFile
    from gpusched.lists.submit import JobSource, SubmitOptions


CHUNK_BYTES = 1 << 16
_FILE_NAME = r"[\w.~+/-]*[./][\w.~+/-]*"  # a word that looks like one


def sweep_options(callback: F) -> F:
    """Give a command -c, -p and --each."""
    values = "Put values for {NAME}: lr=1e-3,1e-4 or seed=0..4."
    click.option("--each", metavar="CSV", help="Run the command for each row of this table.")(callback)
    click.option("-p", "--param", "parameters", metavar="NAME=VALUES", multiple=True, help=values)(callback)
    return click.option("-c", "--command", metavar="COMMAND", help="Run this command instead of a FILE.")(callback)


def source_arguments(callback: F) -> F:
    """Give a command FILE, -c, -p and --each; the callback gets what they name as the argument `source`."""

    @click.argument("file", required=False, shell_complete=complete_files)
    @sweep_options
    @functools.wraps(callback)
    def wrapper(
        *args: Any, file: str | None, command: str | None, parameters: tuple[str, ...], each: str | None, **kwargs: Any
    ) -> Any:
        working_directory()
        return callback(*args, source=read_job_source(file, command, parameters, each), **kwargs)

    return cast(F, wrapper)


def names_list(words: Sequence[str], cwd: bytes) -> bool:
    """Return True if these words are a list of commands, or nothing; False if they are a command that is to run in cwd.

    Raises GpuschedError for a file that may be a program, and for what is neither a list nor a program.
    """
    if len(words) < 1 or words == ("-",):
        return True
    path, as_job = words[0], f"as one job: submit -- {shlex.join(words)}"
    is_file = os.path.isfile(path)
    if len(words) > 1 or not is_file:
        program = os.path.join(os.fsdecode(cwd) if "/" in path else "", os.path.expanduser(path))
        if re.fullmatch(_FILE_NAME, path) and not has_program(program):
            hint = "options stand before FILE" if is_file else _similar_files(path)
            problem = "is a file, and no program" if is_file else "there is no such file, and no such program"
            raise GpuschedError(problem, where=path, hint="; ".join(filter(None, (hint, as_job))).replace("?;", "?"))
        return False
    with open(path, "rb") as file:
        is_program = os.access(path, os.X_OK) and file.read(4).startswith((b"#!", b"\x7fELF"))
    if is_program:
        hint = f"{as_job}; as a list of commands: submit - < {shlex.quote(path)}"
        raise GpuschedError("is a program, and may be a list of commands", where=path, hint=hint)
    return True


def _similar_files(path: str) -> str:
    import difflib

    directory, name = os.path.split(path)
    with suppress(OSError):
        files = difflib.get_close_matches(name, os.listdir(directory or "."), cutoff=0.7)
        return f"did you mean {' or '.join(os.path.join(directory, each) for each in files)}?" if files else ""
    return ""


def read_job_source(file: str | None, command: str | None, parameters: tuple[str, ...], each: str | None) -> JobSource:
    """Return the source that the command line names, with the text of a file. A stream is not read yet."""
    from gpusched.lists.submit import JobSource, Sweep

    if command is None:
        if parameters or each is not None:
            raise GpuschedError(
                f"{'-p' if parameters else '--each'} goes with a command",
                hint="-c 'python train.py --seed {seed}' -p seed=0..4; in a YAML job file: grid:, zip:, csv:",
            )
        return _read_file(file)
    if file is not None:
        hint = f" (did you mean gpusched run -- {file} -c …?)" if has_program(file) else ""
        raise click.UsageError(f"Either FILE ({file}) or -c COMMAND, not both{hint}.")
    if not command.strip():
        raise GpuschedError("the command is empty", where="-c")
    return JobSource(Sweep(command, parameters, each))


def accept(
    jobs: JobFile,
    name: str,
    settings: Settings,
    *,
    wanted: Attributes | None = None,
    verbose: bool = False,
    quiet: bool = False,
) -> JobFile:
    """Return the jobs, and say what is doubtful in them. Raises GpuschedError for what cannot be right.

    `wanted` are attributes of those jobs that do not state them.
    """
    from gpusched.lists.submit import find_untagged, refused
    from gpusched.operations.run.programs import missing_programs

    refused(jobs, name)
    doubts = (*missing_programs(jobs.specs, settings), *find_untagged(jobs.specs, settings, wanted))
    jobs = jobs._replace(findings=(*jobs.findings, *doubts))
    if jobs.findings and not quiet:
        from gpusched.operations.run.check import findings_text

        click.echo(findings_text(jobs.findings, name, verbose=verbose), err=True)
    return jobs


def read_whole(source: JobSource) -> JobSource:
    """Return the source with its text, which is read to its end if it is a stream."""
    return source._replace(data=sys.stdin.buffer.read()) if source.is_stream else source


def accept_list(source: JobSource, options: SubmitOptions, **how: Any) -> JobFile:
    """Return the jobs of a source, read to its end, as `accept` does. Raises GpuschedError if there is none."""
    from gpusched.lists.submit import refuse_empty

    jobs = read_whole(source).parse(options)
    return refuse_empty(accept(jobs, source.name, options.settings, **how), source.name)


def _read_file(file: str | None) -> JobSource:
    from gpusched.lists.submit import STREAM, JobSource, read_source

    if file is None:
        raise click.UsageError("Missing argument 'FILE' (or -c COMMAND).")
    if file == STREAM:
        return JobSource(file)
    try:
        if not stat.S_ISREG(os.stat(file).st_mode) and not os.path.isdir(file):
            _take_as_stdin(file)
            return JobSource(STREAM)
        return read_source(file)
    except OSError as error:
        hint = _similar_files(file) if isinstance(error, FileNotFoundError) else ""
        hint = hint or "FILE is a file of one shell command a line, or a YAML job file;"
        hint += " one command: gpusched run -- COMMAND"
        raise GpuschedError(f"cannot be read: {error.strerror}", where=file, hint=hint) from None


def _take_as_stdin(pipe: str) -> None:
    """Read a pipe such as <(make-commands) as standard input: its name identifies no list."""
    fd = os.open(pipe, os.O_RDONLY)
    if fd != 0:
        os.dup2(fd, 0)
        os.close(fd)


def await_text() -> bytes:
    """Wait for text on standard input, and return the first piece of it.

    Raises GpuschedError if the input ends without any: the program that writes the commands has probably failed.
    """
    select.select([0], [], [])  # it is left blocking or not, as it was
    try:
        text = os.read(0, CHUNK_BYTES)
    except OSError:  # a terminal that is gone
        text = b""
    if not text:
        hint = "did the program that writes the commands fail? one shell command a line; lines with # are skipped"
        raise GpuschedError("was empty", where="standard input", hint=hint)
    from gpusched.common.text_input import encoding_problem

    if problem := encoding_problem(text):
        raise GpuschedError(f"this is {problem}", where="standard input")
    return text
