"""The start of `gpusched` and of `python -m gpusched`: from here on Ctrl-C ends a command in order, with 130."""

from __future__ import annotations

import gc
import signal
import sys


class Interrupt(KeyboardInterrupt):
    """Ctrl-C, as a type of our own.

    If a plain KeyboardInterrupt comes out of an exec() of source text, as in the making of a dataclass, CPython ends a
    `python -m` by SIGINT even after it was handled.
    """


def main() -> None:
    """Run the command line of this process and leave with its exit code."""
    gc.set_threshold(50_000)  # most commands end before there is anything to collect
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored, as behind nohup
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from gpusched.cli.main import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:  # while the command line was not there yet to handle it
        print("gpusched: interrupted", file=sys.stderr)
        sys.exit(130)


def _interrupt(number: int, frame: object) -> None:
    raise Interrupt


if __name__ == "__main__":
    main()
