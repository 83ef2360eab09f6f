"""Describe to people the changes of jobs, and the answer of a dispatcher that is to stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpusched.common.text import ranges
from gpusched.views.words import count

PLURALS = {"is": "are", "was": "were", "has": "have", "stays": "stay", "waits": "wait", "starts": "start"}


def change_lines(jobs: Mapping[str, Sequence[int]]) -> list[str]:
    """Return a line for each text, with the jobs that it is about. Its verb agrees with their number."""
    lines = []
    for text, ids in jobs.items():
        verb, space, rest = text.partition(" ")
        several = f"jobs {ranges(ids)}: {PLURALS.get(verb, verb)}{space}{rest}"
        lines.append(several if len(ids) > 1 else f"job {ranges(ids)}: {text}")
    return lines


def stop_lines(
    pid: int | None, running: int, answer: str, *, queue: str, option: str, at_once: bool, is_pool: bool
) -> list[str]:
    """Return what has become of a request to stop. `queue` is its label, `option` its name after -q."""
    if answer in ("nobody", "left"):
        lines = [f"no dispatcher works on {queue}: there is nothing to stop"]
        more = f"{count(running, 'job')} may still run without one: gpusched status -q {option}"
        return [*lines, more] if running else lines
    who = f"the dispatcher of {queue}" + (f" (pid {pid})" if pid else "")
    if answer == "silent":
        return [f"{who} has not answered in time; it stops as soon as it reads the request"]
    if at_once and running:
        them = "it" if running == 1 else "them"
        return [f"{who} stops {count(running, 'running job')}, queues {them} again, and leaves"]
    if running:
        pool = ", which are those of a pool and end with its last item" * is_pool
        return [
            f"{who} starts nothing new, and leaves at the end of {count(running, 'running job')}{pool}",
            f"to stop them too: gpusched stop --now -q {option}",
        ]
    return [f"{who} starts nothing new, and leaves"]
