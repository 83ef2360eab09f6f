"""A script for a range of items, each of which costs the same CPU time: `busy.py FIRST COUNT SECONDS`.

An item costs a time and not a number of steps, since on a shared host the speed of a core depends on the use of the
others: two processes with a fixed number of steps, without gpusched, were 1.5 to 2.2 times as fast as one. The steps
are counted and printed, too.
"""

from __future__ import annotations

import sys
import time


def spend(seconds: float) -> int:
    """Compute until this process has used so much more CPU time. Return the thousands of steps."""
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
