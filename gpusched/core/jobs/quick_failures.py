"""Notice a sweep that is doomed: jobs of one program that fail one after the other, at once and by the same error."""

from __future__ import annotations

import re

from gpusched.core.model import Outcome

QUICK_S = 60.0  # so soon after its start

_ASSIGNMENT = re.compile(rb"[A-Za-z_]\w*=\S*")
_INTERPRETER = re.compile(
    rb"python[\d.]*|bash|sh|zsh|perl|node|julia|Rscript|torchrun|accelerate|uv|poetry|conda|time|nice|env"
)
_SUBCOMMANDS = (b"run", b"launch", b"-m")


def program(command: bytes) -> bytes:
    """Return what a command runs, without its arguments: `python train.py`, `python -m pkg`, `./eval`.

    It is read off the words, as far as that goes: two commands with the same program may be told apart, never the
    other way round for commands that differ in their first words.
    """
    words = [word for word in command.split()[:12] if not _ASSIGNMENT.fullmatch(word)]
    kept: list[bytes] = []
    for word in words:
        is_flag = word.startswith(b"-") and word not in _SUBCOMMANDS
        if not is_flag:
            kept.append(word)
        if not (is_flag or word in _SUBCOMMANDS or _INTERPRETER.fullmatch(word.rpartition(b"/")[2])):
            break
    return b" ".join(kept)


class QuickFailures:
    """The failures in a row of each program. `limit`: so many of them doom the jobs of it that wait; 0: never."""

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[Outcome, int]] = {}  # by program: the last failure, how often in a row

    def note_failure(self, command: bytes, outcome: Outcome, lasted_s: float, limit: int) -> bool:
        """Count the failure of a job. Return True if the other jobs of its program are to be held."""
        name = program(command)
        if not limit or not outcome.note or lasted_s >= QUICK_S:
            self._rows.pop(name, None)
            return False
        before, number = self._rows.get(name, (None, 0))
        self._rows[name] = outcome, number + 1 if outcome == before else 1
        return self._rows[name][1] >= limit

    def forget(self, command: bytes) -> None:
        """Begin anew with this program: a job of it has succeeded, or the others are held now."""
        self._rows.pop(program(command), None)
