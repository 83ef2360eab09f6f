"""Make text from outside fit to show: mask secrets, make escapes visible, make names safe. Prints nothing.

It rather masks a harmless word than shows a secret: the result is for people to read, never for a job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# The expressions are text, which is compiled at first need: few commands need any, and it takes a while.

MASK = "***"
STEM_BYTES = 80

NUMBER = r"\b0x[\da-f]+|\d+(?:\.\d+)*"
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
_NAMED = r"""(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]*)(?P<close>["']?)(?P<gap>\s*[=:]\s*|\s+)(?=\S)"""
# A shell word: quoted pieces (one that is cut off lasts to the end) and plain ones. Inside quotes that began
# before the name, a value ends at a blank or at the quote; in JSON and the like, with its own quotes.
_WORD = r"""(?s)(?:"(?:[^"\\]|\\.)*"?|'[^']*'?|\\.|[^\s"'\\;&|<>()])+"""
_INNER = r"""(?s)(?:\\"[^"\\]*\\"|\\.|'[^'"]*'|"[^'"]*"|[^\s"'\\;&|])+"""
_ITEM = r"""(?s)"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|[^\s"',}\]]+"""
_VARIABLE = r"""(?s)["']?\$(?:\w+["']?|\{\w+\}["']?|\(.*|)"""

_SPLIT = r"[-_.]+|(?<=[a-z0-9])(?=[A-Z])"
_ENDINGS = ("token", "secret", "secrets", "password", "passwords", "passwd", "passphrase")
_KEYS = ("key", "apikey", "accesskey", "secretkey", "privatekey", "authkey")
_VAGUE = ("key", "pass", "signature", "credential", "credentials")  # alone, only before what looks secret
# Words before `token` and `key` that mean something else in machine learning.
_HARMLESS_WORDS = """
bos eos pad unk mask sep cls image video audio special stop start end first last next new per prompt text label sort
primary foreign partition group cache dict state dataset column field index row metric batch data target input output
split feature id loss monitor model config subset public
"""
_HARMLESS = frozenset(_HARMLESS_WORDS.split())
_SECRETLIKE = r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[\w+/=.~-]{16,}"

_FORMATS = (
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[opusr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abeoprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|nvapi-[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
)
_LOGIN = r"(?<![\w-])((?:wandb|swanlab|comet)\s+login\b)([^;&|\n]*)"
_LOGIN_VALUE = r"""(?<=\s)(?!-|\w+://|\*|\$)["']?[^\s"';&|<>]+["']?"""
_IN_PLACE = (
    # scheme://user:password@ and scheme://token@
    (r"(?<=://)([^/\s:@]*:)[^/\s@]+(?=@)", rf"\1{MASK}"),
    (r"(?<=://)()[^/\s:@*]{16,}(?=@)", rf"\1{MASK}"),
    (r"""(?i)(authorization["']?\s*[:=]\s*["']?(?:\w+\s+)?)(?!\$|\w+\s)[^\s"']+""", rf"\1{MASK}"),
    (r"""(?i)(\bbearer\s+)(?=\S*\d)[\w.~+/=-]{8,}""", rf"\1{MASK}"),
    (r"""(\bcurl\b[^;&|\n]*?\s(?:-u|--user)[\s=]*["']?[^\s:"']+:)(?!\$)[^\s"']+""", rf"\1{MASK}"),
    (r"""(\bsshpass\s+-p\s*)(?!\$)\S+""", rf"\1{MASK}"),
)


def mask_urls(text: str) -> str:
    """Keep nothing of each URL but its scheme: those of messengers are passwords."""
    return re.sub(r"(?<=://)\S+", MASK, text)


def mask_secrets(text: str) -> str:
    """Replace passwords, tokens and keys by `***`. A variable such as `$HF_TOKEN` stays readable."""
    lowered = text.lower()
    if not any(mark in lowered for mark in _GATE):
        return text
    text = _mask_named(text)
    for pattern, replacement in _IN_PLACE:
        text = re.sub(pattern, replacement, text)
    text = re.sub(_LOGIN, lambda login: login[1] + re.sub(_LOGIN_VALUE, MASK, login[2]), text)
    return re.sub(_FORMATS, MASK, text)


def _mask_named(text: str) -> str:
    """Mask the values of assignments, options and fields with a suspicious name."""
    parts: list[str] = []
    end = 0
    for match in re.finditer(_NAMED, text):
        name, start = match["name"], match.end()
        blank = match["gap"].isspace()
        if match.start() < end or (blank and not name.startswith("-")) or not _suspicious(name):
            continue
        before = text[match.start() - 1 : match.start()]
        if match["close"]:
            pattern = _ITEM
        elif before in ('"', "'") and not blank:
            pattern = _INNER
        else:
            pattern = _WORD
        value = re.compile(pattern).match(text, start)
        if value is None or (blank and value[0].startswith("-")) or re.fullmatch(_VARIABLE, value[0]):
            continue
        if _is_vague(name) and not re.fullmatch(_SECRETLIKE, value[0].strip("\"'")):
            continue
        parts += (text[end:start], MASK)
        end = value.end()
    return "".join(parts) + text[end:] if parts else text


def _suspicious(name: str) -> bool:
    words = [word.lower() for word in re.split(_SPLIT, name) if word]
    if not words:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "pwd":
        return before not in ("", "old")  # the shell's own PWD and OLDPWD are directories
    if last in ("key", "token"):
        return before not in _HARMLESS
    return last.endswith(_ENDINGS) or last in _KEYS or last in _VAGUE


def _is_vague(name: str) -> bool:
    """Return True for a name such as `key` whose value is only a secret if it looks like one; not for `--token`."""
    words = [word for word in re.split(_SPLIT, name) if word]
    last = words[-1].lower()
    if last in ("key", "token") and len(words) > 1:
        return False
    return last in _VAGUE or (last == "token" and name.islower() and not name.startswith("-"))


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


def without_numbers(text: str) -> str:
    """Return a text without its numbers, to compare it with others."""
    return re.sub(NUMBER, "…", text)


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


def natural_key(name: str) -> tuple[list[str | tuple[int, str]], str]:
    """Return the key that sorts `gpu_2` before `gpu_10`: numbers by value, of any length; leading zeros decide last."""
    texts = re.split("([0-9]+)", name)
    words: list[str | tuple[int, str]] = [*texts]
    words[1::2] = [(len(digits), digits) for digits in (text.lstrip("0") for text in texts[1::2])]
    return words, name
