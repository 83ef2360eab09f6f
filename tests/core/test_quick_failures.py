"""When a sweep is doomed: the programs of commands, and their failures in a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpusched.core.jobs.quick_failures import QuickFailures, program
from gpusched.core.model import Outcome, OutcomeKind

MISSING = Outcome(OutcomeKind.EXITED, 2, note="python: can't open file 'trian.py'")
NAN = Outcome(OutcomeKind.EXITED, 1, note="ValueError: loss is nan")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (b"python train.py --seed 1", b"python train.py"),
        (b"WANDB_MODE=offline OMP=1 python3 -u train.py 3", b"python3 train.py"),
        (b"python -m pkg.train --lr 1", b"python -m pkg.train"),
        (b"./eval.sh a b", b"./eval.sh"),
        (b"torchrun --standalone train.py", b"torchrun train.py"),
        (b"uv run train.py --seed 2", b"uv run train.py"),
        (b"exit 3", b"exit"),
        (b"", b""),
    ],
)
def test_the_program_of_a_command(command: bytes, name: bytes) -> None:
    assert program(command) == name


def test_three_in_a_row_by_one_error_doom_the_rest() -> None:
    failures = QuickFailures()

    def fail(seed: int, outcome: Outcome = MISSING, lasted_s: float = 1.0, limit: int = 3) -> bool:
        return failures.note_failure(b"python trian.py %d" % seed, outcome, lasted_s, limit)

    assert [fail(n) for n in range(3)] == [False, False, True]
    failures.forget(b"python trian.py")  # held
    assert [fail(0), fail(1), fail(2, NAN), fail(3), fail(4), fail(5)] == [False] * 5 + [True]
    failures.forget(b"python trian.py 7")  # one succeeds
    assert [fail(0), fail(1), fail(2, lasted_s=61), fail(3), fail(4)] == [False] * 5
    assert not any(fail(n, replace(MISSING, exit_code=n)) for n in (5, 6, 7)) and not fail(4)  # other codes
    failures.forget(b"python trian.py")
    assert [fail(3), fail(4)] == [False] * 2
    assert not failures.note_failure(b"python other.py", MISSING, 1.0, 3)
    assert fail(6)
    assert not any(fail(n, limit=0) for n in range(9))
