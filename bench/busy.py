"""A script that takes a range of items, each of which costs the same CPU time. Prints a number that depends on all.

busy.py FIRST COUNT ROUNDS
"""

from __future__ import annotations

import sys


def work(item: int, rounds: int) -> int:
    """Arithmetic that fits into a core's own caches, so that two of them do not get into each other's way."""
    state = item + 1
    for _ in range(rounds):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    return state


def main() -> None:
    first, count, rounds = map(int, sys.argv[1:4])
    print(sum(work(item, rounds) for item in range(first, first + count)), flush=True)


if __name__ == "__main__":
    main()
