"""Find passwords, tokens and keys in a text that has words for them. Used by `text.mask_secrets` alone."""

from __future__ import annotations

import re

MASK = "***"

_NAMED = re.compile(r"""(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]*)(?P<close>["']?)(?P<gap>\s*[=:]\s*|\s+)(?=\S)""")
# A shell word: quoted pieces (one that is cut off lasts to the end) and plain ones. Inside quotes that began
# before the name, a value ends at a blank or at the quote; in JSON and the like, with its own quotes.
_WORD = re.compile(r"""(?:"(?:[^"\\]|\\.)*"?|'[^']*'?|\\.|[^\s"'\\;&|<>()])+""", re.DOTALL)
_INNER = re.compile(r"""(?:\\"[^"\\]*\\"|\\.|'[^'"]*'|"[^'"]*"|[^\s"'\\;&|])+""", re.DOTALL)
_ITEM = re.compile(r""""(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|[^\s"',}\]]+""", re.DOTALL)
_VARIABLE = re.compile(r"""["']?\$(?:\w+["']?|\{\w+\}["']?|\(.*|)""", re.DOTALL)

_SPLIT = re.compile(r"[-_.]+|(?<=[a-z0-9])(?=[A-Z])")
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
_SECRETLIKE = re.compile(r"(?=\D*\d)(?=[^A-Za-z]*[A-Za-z])[\w+/=.~-]{16,}")

_FORMATS = re.compile(
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[opusr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abeoprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|nvapi-[\w-]{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
)
_LOGIN = re.compile(r"(?<![\w-])((?:wandb|swanlab|comet)\s+login\b)([^;&|\n]*)")
_LOGIN_VALUE = re.compile(r"""(?<=\s)(?!-|\w+://|\*|\$)["']?[^\s"';&|<>]+["']?""")
_IN_PLACE = (
    # scheme://user:password@ and scheme://token@
    (re.compile(r"(?<=://)([^/\s:@]*:)[^/\s@]+(?=@)"), rf"\1{MASK}"),
    (re.compile(r"(?<=://)()[^/\s:@*]{16,}(?=@)"), rf"\1{MASK}"),
    (re.compile(r"""(?i)(authorization["']?\s*[:=]\s*["']?(?:\w+\s+)?)(?!\$|\w+\s)[^\s"']+"""), rf"\1{MASK}"),
    (re.compile(r"""(?i)(\bbearer\s+)(?=\S*\d)[\w.~+/=-]{8,}"""), rf"\1{MASK}"),
    (re.compile(r"""(\bcurl\b[^;&|\n]*?\s(?:-u|--user)[\s=]*["']?[^\s:"']+:)(?!\$)[^\s"']+"""), rf"\1{MASK}"),
    (re.compile(r"""(\bsshpass\s+-p\s*)(?!\$)\S+"""), rf"\1{MASK}"),
)


def mask(text: str) -> str:
    """Return the text with every secret replaced."""
    text = _mask_named(text)
    for pattern, replacement in _IN_PLACE:
        text = pattern.sub(replacement, text)
    text = _LOGIN.sub(lambda login: login[1] + _LOGIN_VALUE.sub(MASK, login[2]), text)
    return _FORMATS.sub(MASK, text)


def _mask_named(text: str) -> str:
    """Mask the values of assignments, options and fields with a suspicious name."""
    parts: list[str] = []
    end = 0
    for match in _NAMED.finditer(text):
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
        value = pattern.match(text, start)
        if value is None or (blank and value[0].startswith("-")) or _VARIABLE.fullmatch(value[0]):
            continue
        if _is_vague(name) and not _SECRETLIKE.fullmatch(value[0].strip("\"'")):
            continue
        parts += (text[end:start], MASK)
        end = value.end()
    return "".join(parts) + text[end:] if parts else text


def _suspicious(name: str) -> bool:
    words = [word.lower() for word in _SPLIT.split(name) if word]
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
    words = [word for word in _SPLIT.split(name) if word]
    last = words[-1].lower()
    if last in ("key", "token") and len(words) > 1:
        return False
    return last in _VAGUE or (last == "token" and name.islower() and not name.startswith("-"))
