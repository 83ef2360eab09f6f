"""Split a command line into simple commands, and each into wrappers, program and the variables that it sets.

Judges nothing; knows names only.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpusched.lists.shell_lexer import Scan, Token, literal

# ---- the commands of a line ------------------------------------------------------------------------

OPENERS = {b"if": b"fi", b"case": b"esac", b"{": b"}"}
OPENERS |= dict.fromkeys((b"for", b"while", b"until", b"select"), b"done")
CLOSERS = frozenset(OPENERS.values())
RESERVED = frozenset(b"then elif else do ! time function".split()) | frozenset(OPENERS) | CLOSERS

_NAMED = (b"for", b"select", b"function")  # a name follows them
_PATTERN = b"pattern"
_ENDS_CLAUSE = frozenset({b";;", b";&", b";;&"})
_JOINING = frozenset({b"&&", b"||", b"|", b"|&"})
_DIGITS = re.compile(rb"\d+")


class Command(NamedTuple):
    """A simple command: its words without redirections, and the operator that ends it."""

    words: tuple[Token, ...]
    ender: Token | None


class Structure(NamedTuple):
    """The commands of a line, and the first token that shows that the line is incomplete."""

    commands: tuple[Command, ...]
    unfinished: Token | None
    heredoc: Token | None


def structure(scan: Scan) -> Structure:
    """Group the tokens of a finished scan into simple commands."""
    grouping = _Grouping()
    for token in scan.tokens:
        (grouping.add_word if token.is_word else grouping.add_operator)(token)
        grouping.previous = token.text
    grouping.flush(None)
    unfinished = _unfinished(scan.tokens, grouping.compounds, grouping.redirected) or grouping.stray
    return Structure(tuple(grouping.commands), unfinished, grouping.heredoc)


class _Grouping:
    """The commands of a line after some of its tokens, and the compounds that are still open."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.compounds: list[tuple[bytes, Token]] = []  # closing word, token that opened it
        self.stray: Token | None = None  # a closing word without an opening one
        self.heredoc: Token | None = None
        self.redirected = False  # the next word is the target of a redirection
        self.previous = b""
        self._words: list[Token] = []
        self._has_redirection = False  # the command begins with one, so that no reserved word can follow
        self._header = b""  # b"case" before the `in` of a case, _PATTERN before a `)` of it

    def flush(self, ender: Token | None) -> None:
        """End the simple command, if there is one."""
        if self._words or (ender is not None and ender.text == b"&"):
            self.commands.append(Command(tuple(self._words), ender))
        self._words.clear()
        self._has_redirection = False

    # ---- words ----

    def add_word(self, token: Token) -> None:
        text, is_first = token.text, not self._words
        if self.redirected:
            self.redirected = False
        elif self._header and not (self._header == _PATTERN and text == b"esac"):
            if text == b"in" and self._header == b"case":
                self._header = _PATTERN
        elif is_first and not self._has_redirection and text in RESERVED and self.previous not in _NAMED:
            self._read_reserved(token)
        elif not (is_first and self._is_no_program(text)):
            self._words.append(token)
            if text == b"]]" and not is_first and self._words[0].text == b"[[":
                self.flush(None)

    def _is_no_program(self, text: bytes) -> bool:
        """Return True for arithmetic, the name of a loop or a function, and an option of the keyword `time`."""
        is_option = self.previous == b"time" and text == b"-p"
        return text[:2] == b"((" or text.endswith(b"()") or self.previous in _NAMED or is_option

    def _read_reserved(self, token: Token) -> None:
        text = token.text
        self._header = b"case" if text == b"case" else b""
        if text in OPENERS:
            self.compounds.append((OPENERS[text], token))
        elif text in CLOSERS:
            self._close(token)

    def _close(self, token: Token) -> None:
        if self.compounds and self.compounds[-1][0] == token.text:
            self.compounds.pop()
        elif not self.compounds or token.text == b")":
            self.stray = self.stray or token

    # ---- operators ----

    def add_operator(self, token: Token) -> None:
        text = token.text
        if self._header == _PATTERN:
            self._header = _PATTERN if text != b")" else b""
        elif text[:1] in b"<>" or text[:2] == b"&>":
            self._redirect(token)
        elif text == b"(":
            self.flush(None)
            self.compounds.append((b")", token))
        elif text == b")":
            self.flush(None)
            self._close(token)
        else:
            self.flush(token)
            in_case = self.compounds and self.compounds[-1][0] == b"esac"
            self._header = _PATTERN if in_case and text in _ENDS_CLAUSE else b""

    def _redirect(self, token: Token) -> None:
        if token.text in (b"<<", b"<<-"):
            self.heredoc = self.heredoc or token
        if self._words and self._words[-1].end == token.start and _DIGITS.fullmatch(self._words[-1].text):
            self._words.pop()  # the number of a descriptor
        self.redirected = True
        self._has_redirection |= not self._words


def _unfinished(tokens: list[Token], compounds: list[tuple[bytes, Token]], redirected: bool) -> Token | None:
    if not tokens:
        return None
    first, last = tokens[0], tokens[-1]
    if first.text in _JOINING or (first.text[:1] in (b";", b"&") and first.text[:2] != b"&>"):
        return first
    if last.text in _JOINING or redirected:
        return last
    return compounds[0][1] if compounds else None


# ---- the parts of a command ------------------------------------------------------------------------

_NAME = re.compile(rb"[A-Za-z_]\w*")
_RUN_TEXT = re.compile(rb"-\w*c")
_ASSIGNMENT = re.compile(rb"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=")

# Programs that run another program, and those of their options that take a word.
_WRAPPERS = frozenset(
    b"env sudo timeout time exec nice ionice taskset nohup setsid command builtin stdbuf chrt numactl unbuffer".split()
)
_WITH_WORD = frozenset(b"-u --unset -C --chdir -g -s --signal -k --kill-after -o -f -a -n -c -i -e -N -m".split())
_WRAPPER_NUMBER = re.compile(rb"[\d.,:-]+[smhd]?|0x[0-9a-fA-F]+")
_DECLARERS = frozenset({b"export", b"declare", b"typeset", b"local", b"readonly"})
_SHELLS = frozenset({b"bash", b"sh", b"dash", b"zsh", b"ksh"})
_SETUP = _DECLARERS | frozenset(
    b"cd pushd popd source . set unset ulimit umask alias unalias shopt module ml workon deactivate".split()
)
# A program and its arguments, without quotes, that activate an environment; and those that leave a process behind.
_ACTIVATES = re.compile(
    rb"(?:conda|mamba|micromamba|pyenv|nvm|spack) (?:activate|deactivate|shell|use|load|unload)\b"
    rb"|eval .*(?:\$\(|`).*\b(?:hook|init|activate|shellenv)\b",
    re.DOTALL,
)
_DETACHES = re.compile(rb"disown\b|(?:tmux|screen|docker|podman) (?:.* )?(?:-\w*d\w*|--detach)(?: |$)", re.DOTALL)

# A line that begins with one of these goes to the scanner.
NOTABLE = RESERVED | _SETUP | _SHELLS | _WRAPPERS
NOTABLE |= frozenset(b"conda mamba micromamba pyenv nvm spack eval disown tmux screen docker podman".split())


class CommandParts:
    """The parts of one simple command.

    `setters` are the words that put a variable into its environment or the shell's, or unset one of the shell's;
    `cleared` is the one that takes the GPU out of the environment, `declarer` the word of an `export`, `unset` or the
    like. `inner` are texts that it runs in a shell, with their offsets.
    """

    __slots__ = ("_words", "cleared", "declarer", "detaches", "inner", "name", "setters", "setup")

    def __init__(self, command: Command) -> None:
        words = self._words = command.words
        self.setters: list[Token] = []
        self.cleared: Token | None = None
        self.declarer: Token | None = None
        self.inner: list[tuple[Scan, int]] = []
        at = 0
        while at < len(words) and _ASSIGNMENT.match(words[at].text):
            self.setters.append(words[at])
            at += 1
        wrappers = []
        while at < len(words) and (wrapper := _basename(words[at])) in _WRAPPERS:
            wrappers.append(wrapper)
            at = self._skip_options(wrapper, at + 1)
        self.name = name = _basename(words[at]) if at < len(words) else b""
        texts = [literal(word.text) for word in words[at + 1 :]]
        self._read_arguments(words[at:], texts)
        line = b" ".join([name, *texts])
        if at < len(words):
            self.setup = name in _SETUP or bool(_ACTIVATES.match(line))
        else:  # assignments alone, or `exec` for its redirections
            self.setup = bool(words) and wrappers in ([], [b"exec"])
        self.detaches = bool(_DETACHES.match(line))
        if b"setsid" in wrappers:  # it forks if it leads a process group, as it does in a job
            self.detaches |= not any(word.text in (b"-w", b"--wait") for word in words)

    def _read_arguments(self, words: tuple[Token, ...], texts: list[bytes]) -> None:
        """Read the arguments, `texts` without quotes, of a program that sets variables or runs a text in a shell."""
        if self.name in _DECLARERS or self.name == b"unset":
            self.declarer = words[0]
            is_setter = _ASSIGNMENT.match if self.name in _DECLARERS else _NAME.fullmatch
            self.setters += (word for word, text in zip(words[1:], texts, strict=True) if is_setter(text))
        elif self.name in _SHELLS:
            for text, word in zip(texts, words[2:], strict=False):
                if _RUN_TEXT.fullmatch(text):
                    self._read_inner(word)

    def _skip_options(self, wrapper: bytes, at: int) -> int:
        """Skip a wrapper's own words; collect the variables that `env` sets."""
        words = self._words
        while at < len(words):
            text = literal(words[at].text)
            if _ASSIGNMENT.match(text):
                self.setters.append(words[at])
            elif not (text.startswith(b"-") or _WRAPPER_NUMBER.fullmatch(text)):
                break
            elif wrapper == b"env" and text in (b"-", b"-i", b"--ignore-environment"):
                self.cleared = words[at]
            elif text in _WITH_WORD:
                at += 1
                if text in (b"-u", b"--unset") and at < len(words) and words[at].text == b"CUDA_VISIBLE_DEVICES":
                    self.cleared = words[at]
            at += 1
        return at

    def _read_inner(self, word: Token) -> None:
        """Scan a text that a shell will run, if the line has its bytes unchanged."""
        raw = word.text
        if len(raw) > 1 and raw[:1] in b"'\"" and literal(raw) == raw[1:-1]:
            scan = Scan(raw[1:-1])
            if not (scan.open or scan.dangling):
                self.inner.append((scan, word.start + 1))


def _basename(word: Token) -> bytes:
    text = literal(word.text)
    return text if text in (b".", b"/") else text.rpartition(b"/")[2]
