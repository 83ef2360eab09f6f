"""Make text from outside fit to show: mask secrets, make escapes visible, make names safe. Prints nothing.

It rather masks a harmless word than shows a secret: the result is for people to read, never for a job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MASK = "***"
STEM_BYTES = 80

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the beginning of a formula


def safe_cell(value: object) -> object:
    """Return a value as a cell of a CSV file: an apostrophe stands before a text that is read as a formula."""
    if not isinstance(value, str) or not value.startswith(_FORMULAS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


# ---- secrets ---------------------------------------------------------------------------------------

# In lower case: a text with none of these has no secret.
_GATE = (
    *("token", "key", "secret", "pass", "pwd", "signature", "credential", "login", "authorization", "bearer"),
    *("://", "curl", "hf_", "sk-", "gho_", "ghp_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox"),
    *("akia", "asia", "aiza", "nvapi-", "eyj"),
)


def mask_urls(text: str) -> str:
    """Keep nothing of each URL but its scheme: those of messengers are passwords."""
    return re.sub(r"(?<=://)\S+", MASK, text)


def mask_secrets(text: str) -> str:
    """Replace passwords, tokens and keys by `***`. A variable such as `$HF_TOKEN` stays readable."""
    lowered = text.lower()
    if not any(mark in lowered for mark in _GATE):
        return text
    from gpusched.common.secrets import mask  # whose expressions take long to compile

    return mask(text)


# ---- control characters ----------------------------------------------------------------------------

_UNSAFE = (
    "[\x00-\x08\x0a-\x1f\x7f-\x9f"  # C0 without the tab, C1
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff"  # direction, separators, no width
    "\ud800-\udfff]"
)


def clean(text: str) -> str:
    """Make control characters, escapes, direction marks and stray bytes visible; a tab becomes a blank."""
    if text.isascii() and text.isprintable():
        return text
    return re.sub(_UNSAFE, _visible, text.replace("\t", " "))


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        code -= 0xDC00  # a byte that was no UTF-8
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def one_line(text: object, limit: int = 500) -> str:
    """Return text from others (a name, an error of a library) as one line: secrets masked, cleaned, cut at `limit`."""
    line = clean(mask_secrets(" ".join(str(text).split())))
    if not line.isprintable():
        line = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in line)
    return line if len(line) <= limit else line[: limit - 1] + "…"


_ESCAPE = (  # CSI; OSC, DCS and their like; the short ones; bell and backspace
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~]?)|[\x07\x08]"
)


def count(number: int, noun: str) -> str:
    """Return a number with its noun: 1 job, 2 jobs."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ranges(ids: Iterable[int]) -> str:
    """Format ids in order, with neighbours joined: 1, 3-7."""
    spans: list[list[int]] = []
    for job_id in sorted(ids):
        if spans and job_id == spans[-1][1] + 1:
            spans[-1][1] = job_id
        else:
            spans.append([job_id, job_id])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def first_few(texts: Sequence[str], limit: int = 5) -> list[str]:
    """Return the first texts, and how many more there are."""
    more = len(texts) - limit
    return [*texts[:limit], f"and {more:,} more"] if more > 0 else list(texts)


def without_escapes(text: str) -> str:
    """Remove the escape sequences that a program sends to a terminal."""
    return re.sub(_ESCAPE, "", text)


def last_line(tail: bytes) -> str:
    """Return the last visible line of a log, or state of a progress bar: escapes removed, secrets masked."""
    for line in reversed(re.split("[\r\n]", tail.decode("utf-8", "replace"))):
        text = clean(without_escapes(line)).strip() if line else ""
        if text:
            return mask_secrets(text)
    return ""


# ---- names -----------------------------------------------------------------------------------------

_PREFIX = r"(?s)(?:\S*/)?(?:python[\d.]*|bash|sh|env|nohup)|[A-Za-z_]\w*=.*"
_NOT_SAFE = r"[^A-Za-z0-9.=+]+"


def log_stem(command: bytes, limit: int = STEM_BYTES) -> str:
    """Return a readable part for the name of a log file, of a command: ASCII, no separators, no secrets; not unique."""
    words = mask_secrets(command[:4096].decode("utf-8", "replace")).split()
    while len(words) > 1 and re.fullmatch(_PREFIX, words[0]):
        del words[0]
    stem = ""
    for word in words:
        part = re.sub(_NOT_SAFE, "_", word.rstrip("/").rpartition("/")[2]).strip("._")
        stem += f"-{part}" if part else ""
        if len(stem) > limit:
            break
    return stem[1 : limit + 1].strip("-._=+") or "job"
