"""Text from others made fit to show. Prints nothing."""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff]")
_TOKEN = re.compile(r"(?<![\w-])hf_[A-Za-z0-9]{8,}|(?i:(?<=bearer ))\S+")


def clean(text: str) -> str:
    """Make control characters, direction marks and stray bytes visible, and mask tokens of the hub."""
    text = _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\t", " "))
    return _TOKEN.sub("***", text)
