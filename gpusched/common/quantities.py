"""Parse durations and sizes as people type them, and format them. Knows no setting and no attribute by name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import datetime, time, timedelta

UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
DURATION_IS = "seconds (90 or 90s), 90m, 2h, 1d, a mix (1h30m), or as in Slurm 2:00:00 or 1-12:00:00"
MOMENT_IS = "22:30, tomorrow, 2026-12-24T08:00, or +2h from now"
PAST_IS = "2d or 90m ago, 22:30, yesterday, 2026-12-24, 2026-12-24T08:00"
SIZE_IS = "MiB (500) or a number with a unit: 500M, 18G, 1.5GiB"

_PLAIN_SECONDS = NUMBER
_WITH_UNITS = rf"(?i)(?:({NUMBER})d)?\s*(?:({NUMBER})h)?\s*(?:({NUMBER})m)?\s*(?:({NUMBER})s)?"
_CLOCK = r"(?:([0-9]{1,5})-)?([0-9]{1,6}):([0-9]{1,2}):([0-9]{1,2})"  # 1:30 could mean hours or minutes
_TIME_OF_DAY = r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?"
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_LONGEST_S = 10 * 366 * 86400.0

AUTO_MEMORY = -1  # as the memory of a job: by what its siblings were seen to use (mem=auto)
_KIB = 1024
_UNITS_BYTES = {"k": 1 << 10, "": 1 << 20, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = rf"(?i)({NUMBER})\s*(?:([kmgt])(?:i?b)?)?"
_LARGEST_BYTES = 1 << 50


def parse_duration(text: str) -> float:
    """Parse `90`, `90s`, `90m`, `2h`, `1d`, `1h30m`, and Slurm's `2:00:00` and `1-12:00:00` into seconds.

    The text of a ValueError is the valid form.
    """
    text = text.strip()
    if re.fullmatch(_PLAIN_SECONDS, text):
        seconds = float(text)
    else:
        match = re.fullmatch(_CLOCK, text) or re.fullmatch(_WITH_UNITS, text)
        if not text or match is None:
            raise ValueError(DURATION_IS)
        parts = zip(match.groups(), UNITS_S.values(), strict=True)
        seconds = sum(float(number) * unit for number, unit in parts if number is not None)
    if not math.isfinite(seconds) or seconds > _LONGEST_S:
        raise ValueError("at most ten years")
    return seconds


def format_duration(seconds: float) -> str:
    """Return the shortest text that `parse_duration` reads as the same number of seconds."""
    if seconds != int(seconds):
        return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
    rest, text = int(seconds), ""
    for unit, size in UNITS_S.items():
        count, rest = divmod(rest, int(size))
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def parse_moment(text: str, now: float, *, is_past: bool = False) -> float:
    """Parse a moment to come into epoch seconds, or with `is_past` one that was, in local time.

    `22:30` is the next one or the last one, `2h` is ahead (`+2h`, too) or ago; the others are `2026-12-24`,
    `2026-12-24T08:00`, yesterday, today and tomorrow. The text of a ValueError is the valid form.
    """
    text, today = text.strip(), datetime.fromtimestamp(now)
    try:
        if (word := text.lower()) in _DAYS:
            moment = datetime.combine(today + timedelta(days=_DAYS[word]), time())
        elif re.fullmatch(_TIME_OF_DAY, text):
            moment = datetime.combine(today, time.fromisoformat(text.zfill(5)))
            moment += timedelta(days=(moment <= today) - is_past)
        elif re.search("[dhms]$", word) or text[:1] == "+":
            return now - parse_duration(text) if is_past else now + parse_duration(text.removeprefix("+"))
        else:
            moment = datetime.fromisoformat(text)
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise ValueError(PAST_IS if is_past else MOMENT_IS) from None


def parse_size(text: str) -> int:
    """Parse `500`, `500M`, `18G`, `18GiB`, `1.5g` into bytes, rounded up to KiB.

    Units are powers of 1024; without one it is MiB. The text of a ValueError is the valid form.
    """
    match = re.fullmatch(_SIZE, text.strip())
    if match is None:
        raise ValueError(SIZE_IS)
    whole, _, part = match[1].partition(".")
    unit = _UNITS_BYTES[(match[2] or "").lower()]
    shift = int("1" + "0" * len(part))
    size = int(whole) * unit + -(-int(part or "0") * unit // (shift * _KIB)) * _KIB
    if not 1 << 20 <= size <= _LARGEST_BYTES:
        raise ValueError("from 1 MiB to 1024 TiB")
    return size


def format_size(size: int) -> str:
    """Return the shortest text that `parse_size` reads as the same size, for whole KiB."""
    for unit in ("t", "g", "m"):
        if size % _UNITS_BYTES[unit] == 0:
            return f"{size // _UNITS_BYTES[unit]}{unit.upper()}"
    return f"{-(-size // _KIB)}K"


def parse_memory(text: str) -> int:
    """Parse the memory of a job: a size, or AUTO_MEMORY for `auto`. The text of a ValueError is the valid form."""
    return AUTO_MEMORY if text.strip().lower() == "auto" else parse_size(text)


def format_memory(size: int) -> str:
    """Return the shortest text that `parse_memory` reads as the same."""
    return "auto" if size == AUTO_MEMORY else format_size(size)


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the most similar of `words`, or nothing if none is similar."""
    import difflib  # only needed for mistakes

    return next(iter(difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)), "")
