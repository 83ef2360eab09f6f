"""Split a simple command into wrappers, program and the variables that it sets. Judges nothing; knows names only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpusched.lists.shell_syntax import ShellWord, literal

# The expressions are text: a submission of a plain command compiles none of them.
CLOSERS = frozenset(b"then elif else fi do done esac }".split())  # no command begins with one
_RESERVED = CLOSERS | frozenset(b"if for while until select case { ! function".split())
_NUMBER = rb"[\d.,:-]+[smhd]?|0x[0-9a-fA-F]+"
_NAME = rb"[A-Za-z_]\w*"
_RUN_TEXT = rb"-\w*c"
_ASSIGNMENT = rb"[A-Za-z_]\w*(?:\[[^]]*\])?\+?="

# Programs that run another program, and those of their options that take a word.
_WRAPPERS = frozenset(
    b"env sudo timeout time exec nice ionice taskset nohup setsid command builtin stdbuf chrt numactl unbuffer".split()
)
_CLEARS = rb"-|-\w*i|--ignore-environment|(?:-u|--unset=)CUDA_VISIBLE_DEVICES"  # options of env
_WITH_WORD = frozenset(b"-u --unset -C --chdir -g -s --signal -k --kill-after -o -f -a -n -c -i -e -N -m".split())
_DECLARERS = frozenset({b"export", b"declare", b"typeset", b"local", b"readonly"})
_SHELLS = frozenset({b"bash", b"sh", b"dash", b"zsh", b"ksh"})
_SETUP = _DECLARERS | frozenset(
    b"cd pushd popd source . set unset ulimit umask alias unalias shopt module ml workon deactivate".split()
)
# A program and its arguments, without quotes, that activate an environment; and those that leave a process behind.
_ACTIVATES = (
    rb"(?s)(?:conda|mamba|micromamba|pyenv|nvm|spack) (?:activate|deactivate|shell|use|load|unload)\b"
    rb"|eval .*(?:\$\(|`).*\b(?:hook|init|activate|shellenv)\b"
)
_DETACHES = rb"(?s)disown\b|(?:tmux|screen|docker|podman) (?:.* )?(?:-\w*d\w*|--detach)(?: |$)"
# What does its damage only when it runs: the finding of each.
_HARMS = {
    "slurm": rb"(?s)(?:srun|sbatch|salloc) .*\S",
    "remote": rb"(?s)(?:ssh|mosh) .*\S",
    "all-gpus": rb"(?s)(?:docker|podman|nerdctl) (?:.* )?--gpus[= ](?!\S*(?:CUDA_VISIBLE_DEVICES|GPUSCHED_))",
    "endless": rb"(?s)tail (?!.*--pid)(?:.* )?(?:-\w*[fF]\w*|--follow\S*)(?: .*)?|sleep inf.*",
}

# A line that begins with one of these is not plain.
NOTABLE = _RESERVED | _SETUP | _SHELLS | _WRAPPERS
NOTABLE |= frozenset(b"conda mamba micromamba pyenv nvm spack eval disown tmux screen docker podman".split())
NOTABLE |= frozenset(b"ssh mosh nerdctl tail sleep srun sbatch salloc".split())


class CommandParts:
    """The parts of one simple command.

    `setters` are the words that put a variable into its environment or the shell's, or unset one of the shell's;
    `cleared` is the word by which env takes the GPU away, `declarer` that of an `export`, `unset` or the like. `script`
    is a text that it runs in a shell, in quotes; `harm` the name of a finding.
    """

    __slots__ = ("cleared", "declarer", "detaches", "harm", "name", "script", "setters", "setup")

    def __init__(self, words: Sequence[ShellWord]) -> None:
        self.setters: list[ShellWord] = []
        self.cleared: ShellWord | None = None
        self.declarer: ShellWord | None = None
        self.script: ShellWord | None = None
        wrappers, rest = self._skip_wrappers(words)
        self.name = name = _basename(literal(rest[0].text)) if rest else b""
        texts = [literal(word.text) for word in rest[1:]]
        line = b" ".join([name, *texts])
        harms = (name for name, form in _HARMS.items() if re.match(form, line))
        self.harm = next(harms, "") if b"timeout" not in wrappers else ""
        self.detaches = bool(re.match(_DETACHES, line))
        # with no program left: assignments alone, or `exec` for its redirections
        self.setup = name in _SETUP or bool(re.match(_ACTIVATES, line)) if rest else wrappers <= {b"exec"}
        if name in _DECLARERS or name == b"unset":
            self.declarer = rest[0]
            form = _ASSIGNMENT if name in _DECLARERS else _NAME + rb"\Z"
            self.setters += (word for word, text in zip(rest[1:], texts, strict=True) if re.match(form, text))
        elif name in _SHELLS:
            self.script = next((w for t, w in zip(texts, rest[2:], strict=False) if re.fullmatch(_RUN_TEXT, t)), None)

    def _skip_wrappers(self, words: Sequence[ShellWord]) -> tuple[set[bytes], Sequence[ShellWord]]:
        """Collect the assignments before the program. Return the wrappers, and the words from the program on."""
        wrappers: set[bytes] = set()
        takes_word = False
        for n, word in enumerate(words):
            text = literal(word.text)
            is_unset = takes_word and text == b"CUDA_VISIBLE_DEVICES"
            if b"env" in wrappers and (is_unset or re.fullmatch(_CLEARS, text)):
                self.cleared = word
            elif re.match(_ASSIGNMENT, text):
                self.setters.append(word)
            elif _basename(text) in _WRAPPERS:
                wrappers.add(_basename(text))
            elif not (wrappers and (takes_word or text.startswith(b"-") or re.fullmatch(_NUMBER, text))):
                return wrappers, words[n:]
            takes_word = text in _WITH_WORD and word is not self.cleared
        return wrappers, ()


def _basename(text: bytes) -> bytes:
    return text if text in (b".", b"/") else text.rpartition(b"/")[2]
