"""Find the reason of a failure in the end of a log: the last line that states an error, else the last line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gpusched.common.text import NUMBER, one_line, without_escapes
from gpusched.core.jobs.outcome import classify
from gpusched.core.model import Outcome, OutcomeKind

REASON_LENGTH = 160
_SIGNALS_FROM_OUTSIDE = (1, 2, 9, 15)  # HUP, INT, KILL, TERM: what stands in the log is not why

_TRACEBACK = "Traceback (most recent call last):"
_PREFIX = re.compile(r"^(?:\[(?:rank|default)?\d+\]:\s*)?[\s|+]*")  # of torchrun, and of a group of exceptions
_IGNORED = re.compile(r"\bException ignored in\b")  # by Python, while it ends
_ERROR_LINE = re.compile(
    r"""
      ^[\w.]*(?:Error|Exception|Interrupt)(?::[ ]|$)                  # an exception of Python, Java, Node
    | (?<![\w-])(?:fatal|error|panic)(?:\[\w+\])?:[ ]                 # git, gcc, argparse, Rust, Node, srun
    | ^\W*(?-i:FATAL|ERROR|CRITICAL)\b\W                              # the level of a logger
    | \|[ ](?:ERROR|CRITICAL)[ ]+\|
    | ^Fatal[ ]Python[ ]error: | \bpanicked[ ]at\b
    | \b(?:CUDA|HIP|cuDNN|cuBLAS|NCCL)[ ](?:error|failure|out[ ]of[ ]memory)\b
    | ^\S*python[\d.]*:[ ](?:can't[ ]open[ ]file|No[ ]module[ ]named)
    | ^\S+:.*:[ ](?:command[ ]not[ ]found|not[ ]found|Permission[ ]denied|No[ ]such[ ]file[ ]or[ ]directory
        |Is[ ]a[ ]directory|cannot[ ]execute.*|unbound[ ]variable|No[ ]space[ ]left[ ]on[ ]device)$
    | \b(?-i:Segmentation[ ]fault|Bus[ ]error|Illegal[ ]instruction|Abort\w*|Killed)\b
    | ^terminate[ ]called[ ]after | ^\s*what\(\):[ ] | \bAssertion[ ].*[ ]failed
    | ^make(?:\[\d+\])?:[ ]\*\*\*
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NO_ERROR = re.compile(
    r"""
      \b(?:error|loss)s?:[ ]+[-+(]?(?:\d|nan\b|inf\b|none\b|no\b)     # a number that a program measured
    | warn(?:ing)?\]?: | ^\W*(?:INFO|DEBUG|NOTICE)\b
    | ^wandb:
    """,
    re.VERBOSE | re.IGNORECASE,
)
_ABOUT_ANOTHER = re.compile(r"^(?:[\w.]*\.)?(?:ChildFailedError|CalledProcessError|ProcessExitedException)\b|^make\b")
# With the pid of what was killed.
_SHELL = re.compile(r"^(?:\S*/)?(?:ba|da|z|k)?sh: (?:-c: )?(?:line )?\d+: +(?:\d+ +)?")

_DETAILS = re.compile(rf"""'[^']*[./\d][^']*'|"[^"]*[./\d][^"]*"|\S*/\S*|{NUMBER}""")


def kind_of_reason(reason: str) -> str:
    """Return a reason without the paths and numbers in which those of one kind differ."""
    return _DETAILS.sub("…", reason)


def find_reason(outcome: Outcome, log_tail: str) -> str:
    """Return the line of a log that says why its attempt failed, fit to show; empty if there is none.

    The last error counts, since a program may have handled the others; but one that a launcher reports about its child
    only where the child said nothing. Where no line has the form of an error, and no cause is known, the last line of
    a program that ended with an exit code of its own is the best guess.
    """
    is_own_failure = outcome.kind in (OutcomeKind.EXITED, OutcomeKind.SIGNALLED) and not outcome.ok
    if not is_own_failure or outcome.signal in _SIGNALS_FROM_OUTSIDE:
        return ""
    reason, log_tail = "", without_escapes(log_tail)
    for text in _error_lines(log_tail):
        if not (reason and _ABOUT_ANOTHER.search(text)):
            reason = text
    if not (reason or outcome.cause or (outcome.exit_code or 0) - 128 in _SIGNALS_FROM_OUTSIDE):
        last = _last_line(log_tail) if outcome.kind is OutcomeKind.EXITED else ""
        reason = last and f"its log ends with: {last}"
    return one_line(_SHELL.sub("", reason), REASON_LENGTH)


def _last_line(log_tail: str) -> str:
    """Return the last line that has a word in it and is not the farewell of a logger; empty if there is none."""
    lines = (_PREFIX.sub("", line) for line in reversed(re.split(r"[\r\n]+", log_tail)))
    return next((line for line in lines if re.search(r"[^\W\d_]{2}", line) and not line.startswith("wandb:")), "")


def without_repetition(outcome: Outcome) -> Outcome:
    """Return an outcome without the line of the log that says at length what its cause says."""
    is_repetition = outcome.cause and classify(outcome.exit_code, outcome.signal, outcome.note) == outcome.cause
    return replace(outcome, note="") if is_repetition else outcome


def _error_lines(log_tail: str) -> Iterator[str]:
    """Yield each line that states an error: the one that ends a traceback, or one of a known form."""
    prefix: str | None = None  # of each line of the traceback that is being read, as torchrun or Ray writes it
    is_ignored = False
    for line in re.split(r"[\r\n]+", log_tail):
        before, mark, _ = line.partition(_TRACEBACK)
        text = line.removeprefix(prefix or "")
        if mark and "Exception Group" not in before:
            prefix = before
        elif prefix is not None:
            if text and not text.startswith((" ", "\t")):
                if not is_ignored:
                    yield text
                prefix, is_ignored = None, False
        elif _IGNORED.search(line):
            is_ignored = True
        elif _ERROR_LINE.search(text := _PREFIX.sub("", line)) and not _NO_ERROR.search(text):
            yield text
