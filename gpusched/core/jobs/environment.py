"""The environment in which a job was submitted: what is kept of it, and its form in the queue.

The form is NAME=value with a NUL behind each, sorted: equal environments are equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

ALWAYS = frozenset(b"HOME USER LOGNAME SHELL PATH LANG TZ TMPDIR".split())  # kept by every choice
_OF_A_SHELL = re.compile(
    rb"(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|GPU_DEVICE_ORDINAL|GPUSCHED_\w*|(OLD)?PWD|SHLVL|_"
)


def is_of_a_shell(name: bytes) -> bool:
    """Return True for a variable that is set anew for each job and each dispatcher, or means the shell alone."""
    return _OF_A_SHELL.fullmatch(name) is not None


def exported(environ: Mapping[bytes, bytes], export: str = "all") -> bytes:
    """Return what a job gets of this environment: `all`, `none`, or the NAMES,… that `export` lists.

    Variables that choose GPUs are never among them.
    """
    names = frozenset(export.encode().split(b",")) | ALWAYS if export != "all" else environ.keys()
    kept = sorted(name for name in environ if name in names and not is_of_a_shell(name))
    return b"".join(b"%b=%b\0" % (name, environ[name]) for name in kept)


def variables(content: bytes) -> dict[bytes, bytes]:
    """Return the variables of an environment in the form that `exported` makes."""
    pairs = (line.partition(b"=") for line in content.split(b"\0") if line)
    return {name: value for name, _, value in pairs}
