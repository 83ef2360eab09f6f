"""A script that takes a range of items, each of which costs the same CPU time, by the clock that counts only that.

busy.py FIRST COUNT SECONDS

An item is worth a time and not a number of steps: on a shared host the speed of one core depends on who uses the
others; two processes of a fixed number of steps each, without gpusched, were 1.5 to 2.2 times as fast as one. What is
asked here is how much of the time of the cores gets to the items. The steps are counted and printed for that reason.
"""

from __future__ import annotations

import sys
import time


def spend(seconds: float) -> int:
    """Arithmetic until this process has had so much more CPU time; how many thousand steps that were."""
    state, steps, until = 1, 0, time.process_time() + seconds
    while time.process_time() < until:
        for _ in range(1000):
            state = (state * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        steps += 1
    return steps


def main() -> None:
    first, count, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    for item in range(first, first + count):
        print(item, spend(seconds), flush=True)


if __name__ == "__main__":
    main()
