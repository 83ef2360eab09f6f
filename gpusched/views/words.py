"""Format numbers, durations and texts for people, and estimate the time left. Lays nothing out."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from itertools import pairwise

from gpusched.common.text import clean
from gpusched.common.text import count as count
from gpusched.core.documents import shown_line
from gpusched.core.model import MIB, JobRow
from gpusched.core.plan.board import Pace

WORTH_CUTTING = 12  # characters
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")  # what stands in quotes is one


def clock(seconds: float) -> str:
    """Format a duration as a clock does: 0:05, 12:34, 1:02:03, 2d 03:04."""
    whole = max(0, int(seconds))
    minutes, s = divmod(whole, 60)
    hours, m = divmod(minutes, 60)
    if not hours:
        return f"{m}:{s:02d}"
    days, h = divmod(hours, 24)
    return f"{days}d {h:02d}:{m:02d}" if days else f"{h}:{m:02d}:{s:02d}"


def span(seconds: float) -> str:
    """Format a duration that may be short: 1.4 s, 1:05."""
    return f"{seconds:.1f} s" if seconds < 59.95 else clock(seconds)


def moment(at: float, now: float) -> str:
    """Format a time of day, with the date unless it is today."""
    then, today = time.localtime(at), time.localtime(now)
    same = then[:3] == today[:3]
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M:%S", then)


def about(seconds: float) -> str:
    """Format an estimated duration, rounded: ~25 s, ~12 min, ~3 h 20 min."""
    if seconds < 90:
        return f"~{max(5, 5 * round(seconds / 5))} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"~{minutes} min"
    if minutes < 48 * 60:
        return f"~{minutes // 60} h {minutes % 60 // 10 * 10:02d} min"
    return f"~{round(minutes / 1440)} days"


def mib(size: float | None) -> str:
    return "?" if size is None else str(round(size / MIB))


def short_path(path: str, cwd: str) -> str:
    """Return the path as a user types it in `cwd`: relative if it is below."""
    return path[len(cwd) + 1 :] if cwd != "/" and path.startswith(f"{cwd}/") else path


def command_text(command: bytes) -> str:
    """Return a command on one line: secrets masked, runs of blanks joined, control characters visible."""
    return re.sub("  +", " ", clean(shown_line(command)))


def job_text(job: JobRow) -> str:
    """Return a job on one line: its name, or its command."""
    return clean(job.name) or command_text(job.command)


def line_text(job: JobRow) -> str:
    """Return the number of its line in the list of the queue; empty for a job that was submitted by itself."""
    return str(job.line) if job.origin == "list" else ""


def line_place(job: JobRow) -> str:
    """Return where a job stands in its list, to follow its name: ", line 3"; empty for a submitted one."""
    return f", line {job.line}" if job.origin == "list" else ""


def tag_text(job: JobRow) -> str:
    return clean(",".join(job.tags))


def priority(job: JobRow) -> str:
    return str(job.prio) if job.prio else ""


def cleaned_text(number: int) -> str:
    """Return that so many lines of a list do not run again."""
    lines = "1 line was" if number == 1 else f"{number} lines were"
    return f"{lines} run before and cleaned away: not run again (`gpusched clean --forget` lets lines run again)"


def shorten(texts: Sequence[str]) -> list[str]:
    """Shorten what all commands of a list begin and end with, down to the program; a text of one word is a name."""
    lists = [_WORD.findall(text) for text in texts]
    commands = [words for words in lists if len(words) > 1]
    if len(commands) < 2:
        return list(texts)
    room = min(map(len, commands)) - 1
    begin = _count_shared(commands, room)
    end = _count_shared([words[::-1] for words in commands], room - begin)
    left_out, program = _short_beginning(commands[0][:begin])
    is_long = len(" ".join(commands[0][len(commands[0]) - end :])) > WORTH_CUTTING
    end, tail = (end, ["…"]) if is_long else (0, [])
    return [
        text if len(words) < 2 else " ".join([*program, *words[left_out : len(words) - end], *tail])
        for text, words in zip(texts, lists, strict=True)
    ]


def _count_shared(lists: Sequence[Sequence[str]], limit: int) -> int:
    """Return how many words all lists begin with, up to `limit`."""
    return next((n for n in range(limit) if len({words[n] for words in lists}) > 1), limit)


def _short_beginning(shared: Sequence[str]) -> tuple[int, list[str]]:
    """Return how many of these first words to leave out, and what stands for them: the end of the program's name."""
    number = len(shared)
    while number and shared[number - 1].startswith("-"):  # the option of what differs
        number -= 1
    place, program = 0, "".join(shared[:1]).rpartition("/")[2]
    for place_of_word, (before, word) in enumerate(pairwise(("", *shared[:number]))):
        if before == "-m" or word.endswith((".py", ".sh")):
            place, program = place_of_word, re.split("[/.]" if before == "-m" else "/", word)[-1]
    texts = [f"…{program}", "…"][: 1 if number == place + 1 else 2]
    return (number, texts) if len(" ".join(shared[:number])) - len(program) > WORTH_CUTTING else (0, [])


def fit(text: str, width: int) -> str:
    """Cut the text to `width` characters; a mark shows that it was longer."""
    return text if len(text) <= width else text[: max(0, width - 1)].rstrip() + "…"


def rate(per_s: float) -> str:
    """Format items per second, or per minute if they are few: 12.3/s, 4.5/min."""
    number, unit = (per_s, "s") if per_s >= 1 else (per_s * 60, "min")
    return f"{number:.0f}/{unit}" if number >= 100 else f"{number:.1f}/{unit}"


def time_left(pace: Pace, now: float, running_s: Sequence[float], queued: int) -> float | None:
    """Estimate the seconds until all jobs have ended, by the pace so far; None if unknown.

    `running_s` is how long each running job runs already. A job takes as long as those before it in the mean, and as
    many run at once.
    """
    elapsed_s = now - pace.since
    if not pace.jobs or not (running_s or queued) or elapsed_s <= 0:
        return None
    mean_s = pace.job_s / pace.jobs
    left_s = queued * mean_s + sum(max(mean_s - each, mean_s / 4) for each in running_s)
    at_once = (pace.job_s + sum(min(each, elapsed_s) for each in running_s)) / elapsed_s
    return left_s / at_once if at_once else None
