"""Take a simple command apart: its program, what runs it, what it sets. Judges nothing; knows names only."""

from __future__ import annotations

import re

from gpusched.core.shellwords import RESERVED, Command, Scan, Token, literal

MASKS = (b"CUDA_VISIBLE_DEVICES", b"CUDA_DEVICE_ORDER")

_ASSIGNMENT = re.compile(rb"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=")

# Programs that run the program that follows, with their options that take a word.
_WRAPPERS: dict[bytes, tuple[bytes, ...]] = {
    b"env": (b"-u", b"--unset", b"-C", b"--chdir"),
    b"sudo": (b"-u", b"-g", b"-p", b"-C", b"-h"),
    b"timeout": (b"-s", b"--signal", b"-k", b"--kill-after"),
    b"time": (b"-o", b"-f"),
    b"exec": (b"-a",),
    b"nice": (b"-n",),
    b"ionice": (b"-c", b"-n"),
    b"taskset": (b"-c",),
    b"nohup": (),
    b"setsid": (),
    b"command": (),
    b"builtin": (),
    b"stdbuf": (b"-i", b"-o", b"-e"),
    b"chrt": (),
    b"numactl": (b"-C", b"-N", b"-m"),
    b"unbuffer": (),
}
_WRAPPER_NUMBER = re.compile(rb"[\d.,:-]+[smhd]?|0x[0-9a-fA-F]+")
_DECLARERS = frozenset({b"export", b"declare", b"typeset", b"local", b"readonly"})
_SHELLS = frozenset({b"bash", b"sh", b"dash", b"zsh", b"ksh"})
_SETUP = _DECLARERS | {
    b"cd",
    b"pushd",
    b"popd",
    b"source",
    b".",
    b"set",
    b"unset",
    b"ulimit",
    b"umask",
    b"alias",
}
_SETUP |= {b"unalias", b"shopt", b"module", b"ml", b"workon", b"deactivate"}
_ACTIVATORS = frozenset({b"conda", b"mamba", b"micromamba", b"pyenv", b"nvm", b"spack"})
_ACTIVATE = frozenset({b"activate", b"deactivate", b"shell", b"use", b"load", b"unload"})
_SHELL_HOOK = re.compile(rb"(?:\$\(|`).*\b(?:hook|init|activate|shellenv)\b", re.DOTALL)
_DETACH_OPTION = {
    b"tmux": re.compile(rb"-[A-Za-z]*d"),
    b"screen": re.compile(rb"-[A-Za-z]*d[A-Za-z]*m\w*"),
    b"docker": re.compile(rb"-[it]*d[it]*|--detach"),
    b"podman": re.compile(rb"-[it]*d[it]*|--detach"),
}

# A line that begins with one of these is worth a look whatever follows.
NOTABLE = RESERVED | _SETUP | _ACTIVATORS | _SHELLS | frozenset(_WRAPPERS) | frozenset(_DETACH_OPTION)
NOTABLE |= {b"disown", b"eval"}


class Anatomy:
    """What one simple command is made of.

    `setters` are the words that put a variable into its environment or the shell's, `unset` those that
    take one of `MASKS` out, `cleared` the one that empties the environment. `declarer` is the word of an
    `export`, `unset` or the like. `inner` are texts that it runs in a shell, with their offsets.
    """

    __slots__ = ("_words", "cleared", "declarer", "detaches", "inner", "name", "setters", "setup", "unset")

    def __init__(self, command: Command) -> None:
        words = self._words = command.words
        self.setters: list[Token] = []
        self.unset: list[Token] = []
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
        arguments = words[at + 1 :]
        texts = [literal(word.text) for word in arguments]
        if name in _DECLARERS:
            self.declarer = words[at]
            self.setters += (w for w, text in zip(arguments, texts, strict=True) if _ASSIGNMENT.match(text))
        elif name == b"unset":
            self.declarer = words[at]
            self.unset += (w for w, text in zip(arguments, texts, strict=True) if text in MASKS)
        elif name == b"eval":
            self._look_inside(arguments[:1])
        elif name in _SHELLS:
            for k, text in enumerate(texts):
                if re.fullmatch(rb"-\w*c", text):
                    self._look_inside(arguments[k + 1 : k + 2])
        self.setup = bool(words) and _is_setup(name, texts, wrappers)
        option = _DETACH_OPTION.get(name)
        self.detaches = name == b"disown" or (option is not None and any(map(option.fullmatch, texts)))
        if b"setsid" in wrappers:  # it forks where it leads a group, as it does in a job
            self.detaches |= not any(word.text in (b"-w", b"--wait") for word in words)

    def _skip_options(self, wrapper: bytes, at: int) -> int:
        """Pass over a wrapper's own words; collect what `env` sets and unsets."""
        words = self._words
        while at < len(words):
            text = literal(words[at].text)
            if _ASSIGNMENT.match(text):
                self.setters.append(words[at])
            elif not (text.startswith(b"-") or _WRAPPER_NUMBER.fullmatch(text)):
                break
            elif wrapper == b"env" and text in (b"-", b"-i", b"--ignore-environment"):
                self.cleared = words[at]
            elif wrapper == b"env" and text.startswith((b"-u", b"--unset=")) and text.endswith(MASKS):
                self.unset.append(words[at])
            elif text in _WRAPPERS[wrapper] and at + 1 < len(words):
                if text in (b"-u", b"--unset") and literal(words[at + 1].text) in MASKS:
                    self.unset += words[at : at + 2]
                at += 1
            at += 1
        return at

    def _look_inside(self, argument: tuple[Token, ...]) -> None:
        """Scan a text that a shell will run, where its bytes stand in the line as they are."""
        for word in argument:
            raw = word.text
            if len(raw) > 1 and raw[:1] in b"'\"" and literal(raw) == raw[1:-1]:
                scan = Scan(raw[1:-1])
                if not (scan.open or scan.dangling):
                    self.inner.append((scan, word.start + 1))


def _basename(word: Token) -> bytes:
    text = literal(word.text)
    return text if text in (b".", b"/") else text.rpartition(b"/")[2]


def _is_setup(name: bytes, arguments: list[bytes], wrappers: list[bytes]) -> bool:
    if not name:
        return wrappers in ([], [b"exec"])
    if name in _ACTIVATORS:
        return bool(arguments) and arguments[0] in _ACTIVATE
    return name in _SETUP or (name == b"eval" and bool(_SHELL_HOOK.search(b" ".join(arguments))))
