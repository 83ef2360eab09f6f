"""The fate of processes in the background when their user logs out, which systemd decides. Starts no dispatcher."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence

from gpusched.host.queue import queue_dirs

WITHIN_S = 10.0
SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "--")


def scope_words(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words before a command by which it lives on in a scope of its own; none where it needs none.

    That is so for a user who lingers: the scope then belongs to the user's own systemd, and to no session.
    """
    return SCOPE if lingers(environ) and _output([*SCOPE, "echo", "works"], environ) == "works\n" else ()


def lingers(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if processes of this user may stay without a session, from boot on."""
    return "Linger=yes" in _output(["loginctl", "show-user", str(os.getuid()), "--property=Linger"], environ)


def warn(notify: Callable[[str], None]) -> None:
    """Say once per user that a logout ends what is in the background, if that is so."""
    command = ["loginctl", "show-session", "--property=KillUserProcesses"]  # of the manager, without a session
    if "KillUserProcesses=yes" in _output(command, os.environ) and queue_dirs.is_first_time("warned-of-logout"):
        problem = "a logout ends the dispatcher and its jobs here (KillUserProcesses=yes)"
        notify(f"{problem}; `loginctl enable-linger` keeps them")


def _output(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return what a program prints; "" if it is not there, fails or takes too long."""
    try:
        return run_for_user(command, environ)
    except (OSError, subprocess.SubprocessError):
        return ""


def run_for_user(command: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """Return what a program prints that asks the systemd of this user. Raises OSError and SubprocessError."""
    environ = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **environ}
    return subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN_S, check=True
    ).stdout
