"""Libraries that only some commands need: which are missing, and the command that installs them where this runs."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Iterable

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError


def missing(names: Iterable[str]) -> list[str]:
    """Return those of these libraries that cannot be imported here."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def refuse_missing(who: str, names: Iterable[str], *, extra: str = "") -> None:
    """Raise GpuschedError if a library that this command or option needs is not installed; `extra` has them all."""
    if absent := missing(names):
        problem = f"{who} needs libraries that are not installed here: {', '.join(absent)}"
        hint = f"to install them: {install_command(absent)}" + (f" (the extra {extra})" if extra else "")
        raise GpuschedError(problem, hint=hint, exit_code=EXIT_CANNOT_WORK)


def install_command(names: Iterable[str]) -> str:
    """Return the command that adds libraries to the environment of this program: of pipx, with pip, or made by uv."""
    libraries, python = " ".join(names), shlex.quote(sys.executable)
    if os.path.exists(f"{sys.prefix}/pipx_metadata.json"):
        return f"pipx inject {shlex.quote(os.path.basename(sys.prefix))} {libraries}"
    if not missing(["pip"]):
        return f"{python} -m pip install {libraries}"
    return f"uv pip install --python {python} {libraries}"
