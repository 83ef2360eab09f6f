"""What `run` and `check` are given: a list, a stream, or a command with parameters. Reads it; submits nothing."""

from __future__ import annotations

import codecs
import os
import select
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpusched.common.errors import GpuschedError

if TYPE_CHECKING:
    from gpusched.lists.jobfile import JobFile
    from gpusched.lists.submit import SubmitOptions, Sweep

F = TypeVar("F", bound=Callable[..., Any])

STREAM = "-"
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class JobSource:
    """A source of jobs, what was read of it, and the state of the file when it was read."""

    source: str | Sweep
    data: bytes = b""
    found: os.stat_result | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return self.source if isinstance(self.source, str) else "-c"

    def parse(self, rules: SubmitOptions) -> JobFile:
        """The jobs, and all that is wrong with them."""
        from gpusched.lists.submit import parse, parse_sweep

        if isinstance(self.source, str):
            return parse(self.data, rules, self.source)
        return parse_sweep(self.source, rules)


def source_arguments(callback: F) -> F:
    """Give a command FILE, -c, -p and --each; the callback gets `file`, `command`, `parameters` and `each`."""
    for decorate in reversed(
        (
            click.argument("file", required=False),
            click.option(
                "-c",
                "--command",
                metavar="COMMAND",
                help="Run this command instead of a FILE.",
            ),
            click.option(
                "-p",
                "--param",
                "parameters",
                metavar="NAME=VALUES",
                multiple=True,
                help="Put values for {NAME}: lr=1e-3,1e-4 or seed=0..4.",
            ),
            click.option("--each", metavar="CSV", help="Run the command for each row of this table."),
        )
    ):
        decorate(callback)
    return callback


def read_given(file: str | None, command: str | None, parameters: tuple[str, ...], each: str | None) -> JobSource:
    """Look at what was given on the command line, and read the file. A stream is left unread."""
    if command is not None:
        from gpusched.lists.submit import Sweep

        if file is not None:
            raise click.UsageError(f"Either FILE ({file}) or -c COMMAND, not both.")
        if not command.strip():
            raise GpuschedError("the command is empty", where="-c")
        return JobSource(Sweep(command, parameters, each))
    if parameters or each is not None:
        raise GpuschedError(
            f"{'-p' if parameters else '--each'} goes with a command",
            hint="-c 'python train.py --seed {seed}' -p seed=0..4; in a YAML job file: grid:, zip:, csv:",
        )
    if file is None:
        raise click.UsageError("Missing argument 'FILE' (or -c COMMAND).")
    if file == STREAM:
        return JobSource(file)
    try:
        if not stat.S_ISREG(os.stat(file).st_mode) and not os.path.isdir(file):
            _take_as_stdin(file)
            return JobSource(STREAM)
        with open(file, "rb") as stream:
            return JobSource(file, stream.read(), os.fstat(stream.fileno()))
    except OSError as error:
        hint = "FILE is a file of one shell command a line, or a YAML job file"
        raise GpuschedError(f"cannot be read: {error.strerror}", where=file, hint=hint) from None


def _take_as_stdin(pipe: str) -> None:
    """A pipe such as <(make-commands) is read as standard input is: its name says nothing of what comes out of it."""
    fd = os.open(pipe, os.O_RDONLY)
    if fd != 0:
        os.dup2(fd, 0)
        os.close(fd)


def await_command() -> bytes:
    """Wait for a command on standard input; what has been read of it by then.

    Raises GpuschedError where it ends without any: whoever was to write them has probably failed.
    """
    data = b""
    while not _holds_command(data):
        select.select([0], [], [])  # it is left blocking or not, as it was
        try:
            more = os.read(0, CHUNK_BYTES)
        except BlockingIOError:
            continue
        except OSError:  # a terminal that is gone
            more = b""
        if not more:
            what = "ended without a command" if data else "was empty"
            hint = "did the program that writes the commands fail? one shell command a line; lines with # are skipped"
            raise GpuschedError(what, where="standard input", hint=hint)
        data += more
    return data


def _holds_command(data: bytes) -> bool:
    """Whether a line, which may still be cut off, is neither blank nor a comment."""
    lines = (line.strip() for line in data.removeprefix(codecs.BOM_UTF8).split(b"\n"))
    return any(line and not line.startswith(b"#") for line in lines)


def read_all(given: JobSource) -> JobSource:
    """With the whole of a stream, which ends before anything is said of it."""
    return JobSource(STREAM, sys.stdin.buffer.read()) if given.source == STREAM else given
