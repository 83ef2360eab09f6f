"""The shell text that runs a set-up file before a command, and the note by which people see whether the command began.

The note is a file beside the attempt's life file. Before the shell starts it has a line; the shell empties it when the
set-up has come to its end. So a set-up that ends the shell, by `exit` or `exec`, cannot pass for the command.
"""

from __future__ import annotations

import os
import shlex

from gpusched.common.errors import GpuschedError
from gpusched.common.files import write_atomically
from gpusched.common.text_input import check_text
from gpusched.host.attempts import attempt_dir

_POSIX = (". {setup} || exit $?", ": >| {note}")
# Bash can tell where the set-up was when it ended the shell. Its ERR trap would also be that of the command; its EXIT
# trap may not change the exit code, so it runs in a subshell.
_BASH = (
    "gpusched_note={note}",
    """trap 'echo "${{gpusched_at-}}" >| "$gpusched_note"' EXIT""",
    """set -T; trap '[ -z "${{BASH_SOURCE-}}" ] || gpusched_at="at line $LINENO of $BASH_SOURCE"' DEBUG""",
    ". {setup} || exit $?",
    "trap - DEBUG ERR; set +T; : >| {note}",
    """eval "gpusched_trap=($(trap -p EXIT))"; trap - EXIT""",
    """gpusched_trap=${{gpusched_trap[2]-}}""",
    """case $gpusched_trap in ''|*gpusched_note*);; *) trap "($gpusched_trap"$'\\n'") || :" EXIT;; esac""",
    "unset gpusched_at gpusched_note gpusched_trap",
)


def check_setup(path: str) -> None:
    """Raise GpuschedError for a set-up file that is no text, or that is not there."""
    try:
        with open(path, "rb") as file:
            check_text(file.read())
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise GpuschedError(problem, where=f"--setup {path}") from None


def with_setup(command: bytes, setup: str, shell: bytes, directory: str) -> bytes:
    """Return the command behind its set-up, and write the note of this attempt. Raises OSError."""
    note = attempt_dir.beside(directory, attempt_dir.SETUP)
    write_atomically(note, b"\n")
    lines = _BASH if os.path.basename(shell) == b"bash" else _POSIX
    text = "; ".join(lines).format(setup=shlex.quote(_without_cr(setup, f"{note}.sh")), note=shlex.quote(note))
    return os.fsencode(text) + b"\n" + command


def _without_cr(setup: str, copy: str) -> str:
    r"""Return the path of the file; that of the copy, made here, if its lines end in \r\n."""
    try:
        with open(setup, "rb") as file:
            data = file.read()
    except OSError:
        return setup  # the shell reports it in the log of the job
    if b"\r\n" not in data:
        return setup
    write_atomically(copy, data.replace(b"\r\n", b"\n"))
    return copy
