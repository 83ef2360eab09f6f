"""Sort names with numbers in natural order: `gpu_2` before `gpu_10`. Reads no directory."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"([0-9]+)")


def natural_key(name: str) -> tuple[list[str | tuple[int, str]], str]:
    """Return the sort key of a name. Numbers are compared by value, of any length; leading zeros decide last."""
    texts = _DIGITS.split(name)
    words: list[str | tuple[int, str]] = [*texts]
    words[1::2] = [(len(digits), digits) for digits in (text.lstrip("0") for text in texts[1::2])]
    return words, name
