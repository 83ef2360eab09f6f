"""Another user of the box, for tests that run as root: runs Python code under a uid of its own. Asserts nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

OTHER_UID = 64001
NEEDS_TWO_USERS = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")

# What it imports is loaded before it changes the user, who may not be able to read this Python. PR_SET_DUMPABLE (4)
# gives its /proc entries to the new user, as an exec would.
_PRELUDE = """
import ctypes, fcntl, json, os, signal, sys, time
os.umask(0)
os.setgid({uid})
os.setuid({uid})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)

def lock(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd

"""
_END = "\nprint('ready', flush=True)\nsys.stdin.read()\n"


@contextlib.contextmanager
def other_user(code: str, *words: object, uid: int = OTHER_UID) -> Iterator[int]:
    """Run this code as another user, with `words` in sys.argv[1:]; its pid, once it is through. It ends with the block.

    `lock(path)` makes a file and locks it.
    """
    argv = [sys.executable, "-S", "-c", _PRELUDE.format(uid=uid) + code + _END, *map(str, words)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", "the code of the other user failed"
        yield process.pid
        process.kill()


def interpreter_for_all() -> tuple[str, str] | None:
    """A Python that any user of this box can start with our packages, and its PYTHONPATH."""
    here = str(ROOT)
    path = os.pathsep.join([here, *(p for p in sys.path if p.endswith("site-packages"))])
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (os.path.realpath(sys.executable), shutil.which(version, path="/usr/bin:/usr/local/bin")):
        if python is None:
            continue
        command = [python, "-c", "import click, psutil, pynvml, yaml, gpusched.host.attempts.shepherd"]
        try:
            found = subprocess.run(command, user=1, env={"PYTHONPATH": path}, cwd="/", capture_output=True, check=False)
        except OSError:
            continue
        if found.returncode == 0:
            return python, path
    return None


@contextlib.contextmanager
def shared_directory() -> Iterator[Path]:
    """A directory that every user reaches and may write to, as /tmp is."""
    path = Path(tempfile.mkdtemp(prefix="gpusched-shared-"))
    try:
        path.chmod(0o1777)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
