"""The parsers of single settings: text to a value, or a ValueError that says what would be right."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpusched.common.quantities import (
    DURATION_IS,
    format_memory,
    format_size,
    parse_duration,
    parse_memory,
    parse_size,
)


def gpu_list(text: str) -> str | None:
    """Return the list with commas alone between its entries; None for all GPUs."""
    from gpusched.core.plan.selection import parse_gpu_list

    return None if text.lower() == "all" else ",".join(parse_gpu_list(text))


def is_gpu(text: str) -> bool:
    """Return True for an entry of such a list."""
    from gpusched.core.plan.selection import GPU_ENTRY

    return GPU_ENTRY.fullmatch(text) is not None


def whole(least: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least` on."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", text) or (least is not None and int(text) < least):
            raise ValueError("a whole number" if least is None else f"a whole number, at least {least}")
        return int(text)

    return parse


def duration(*, zero: bool) -> Callable[[str], float]:
    def parse(text: str) -> float:
        seconds = parse_duration(text)
        if seconds == 0 and not zero:
            raise ValueError(f"more than 0: {DURATION_IS}")
        return seconds

    return parse


def size(text: str) -> str:
    """Return the size in its shortest form."""
    return format_size(parse_size(text))


def memory(text: str) -> str:
    """Return the memory of a job in its shortest form."""
    return format_memory(parse_memory(text))


def fraction(text: str) -> float:
    value = float(text) if re.fullmatch(r"[01](\.[0-9]{1,6})?|\.[0-9]{1,6}", text) else 0.0
    if not 0.1 <= value <= 1:
        raise ValueError("a number from 0.1 to 1")
    return value


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        for word in words:
            if text.lower() == word.lower():
                return word
        raise ValueError("one of " + ", ".join(words))

    return parse


def tag_limits(text: str) -> str:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not re.fullmatch(r"[^\s=,]+=[1-9]\d*", word):
            raise ValueError(f"TAG=N, comma-separated, N at least 1; {word!r} is not")
    return ",".join(words)


def tag_sizes(text: str) -> str:
    pairs = [word.strip().rpartition("=") for word in text.split(",") if word.strip()]
    if not all(tag for tag, _, _ in pairs):
        raise ValueError("TAG=SIZE, comma-separated")
    return ",".join(f"{tag}={size(text)}" for tag, _, text in pairs)


def switch(text: str) -> bool:
    is_on = text.lower() in ("true", "yes", "on", "1")
    if not is_on and text.lower() not in ("false", "no", "off", "0"):
        raise ValueError("true or false")
    return is_on


def urls(text: str) -> str:
    if not all(re.match(r"[\w+-]+://(?!\*\*\*).", word) for word in some_text(text).split()):
        raise ValueError("URLs as Apprise reads them, such as ntfy://TOPIC")
    return text


def some_text(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("some text")
    return text
