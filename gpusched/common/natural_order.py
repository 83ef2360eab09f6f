"""The order that people expect of names with numbers in them: `gpu_2` before `gpu_10`. Reads no directory."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"([0-9]+)")


def natural_key(name: str) -> tuple[list[str | tuple[int, str]], str]:
    """To sort names by. Numbers go by their value, however long they are; leading zeros decide last."""
    texts = _DIGITS.split(name)
    words: list[str | tuple[int, str]] = [*texts]
    words[1::2] = [(len(digits), digits) for digits in (text.lstrip("0") for text in texts[1::2])]
    return words, name
