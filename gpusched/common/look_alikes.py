"""Characters that look like those of the shell and are others: dashes, curly quotes, blanks, and what has no width."""

from __future__ import annotations

import re
import unicodedata

_DASHES = "\u2010-\u2015\u2212\uff0d"
_OTHERS = "\x85\u00a0\u00ad\u00b4\u2000-\u200f\u2018-\u201f\u2028-\u202f\u205f-\u2064\u3000\ufeff"
# Text, since it takes long to compile these, and hardly any command needs them.
_ANY = f"[{_DASHES}{_OTHERS}]"
_OPTION = rf"-?([{_DASHES}])[{_DASHES}]*[A-Za-z]\S*|([{_OTHERS}])[{_OTHERS}]*--?[A-Za-z]\S*"


def find(text: str) -> tuple[int, str]:
    """Return the offset of the first look-alike, and its name with what was probably meant; -1 if there is none."""
    match = None if text.isascii() else re.search(_ANY, text)
    return (-1, "") if match is None else (match.start(), _describe(match[0], "-"))


def in_option(word: str) -> str:
    """Return the name of the look-alike with which an option begins, and what was meant; empty for another word."""
    match = None if word.isascii() else re.fullmatch(_OPTION, word)
    return "" if match is None else _describe(match[1] or match[2], "--")


def _describe(char: str, dash: str) -> str:
    name = unicodedata.name(char, "NEXT LINE")
    category = unicodedata.category(char)
    meant = f"did you mean {dash}?" if char == "\u2212" or category == "Pd" else "did you mean a space?"
    if category in ("Pi", "Pf", "Ps", "Sk"):
        meant = 'did you mean "?' if "DOUBLE" in name else "did you mean '?"
    elif category == "Cf":
        meant = "it has no width"
    return f"U+{ord(char):04X} {name}; {meant}"
