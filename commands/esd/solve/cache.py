"""A cache of spectra by the content of their tensors, shared by models and processes.

Adapters on one base and finetunes with frozen layers share most of their tensors. A spectrum is written whole or not
at all; while one process computes it, another one goes on with its next layer. An entry that cannot be read is absent.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from gpusched.common.files import write_atomically
from gpusched.esd.options import AnalysisOptions

from .spectrum import Spectrum

_FORMAT = "1 1"  # version of the entries, and of the rules by which they are computed


def content_key(tensor: torch.Tensor, options: AnalysisOptions, *, convolution: bool) -> str:
    """Return a hash of all that a layer's spectrum depends on: bytes, shape, type and solver."""
    way = f"{options.solver}:{options.evals_thresh!r}" if options.solver == "auto" else options.solver
    text = f"{_FORMAT} {tensor.dtype} {tuple(tensor.shape)} {way} {options.farms} {convolution}"
    digest = hashlib.sha256(text.encode())
    digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


class SpectraCache:
    """A directory of spectra. Safe for many processes and threads."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError if there can be no such directory."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._locks = os.open(directory / "locks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self._guard = threading.Lock()

    def close(self) -> None:
        os.close(self._locks)

    def get(self, key: str) -> Spectrum | None:
        """Return the spectrum, or None if it is not there or damaged."""
        try:
            with open(self._path(key), "rb") as file, np.load(file, allow_pickle=False) as stored:
                evals = np.asarray(stored["evals"], dtype=np.float64)
                return Spectrum(evals, *(str(stored[name]) for name in ("solver", "device", "note")))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def put(self, key: str, spectrum: Spectrum) -> None:
        """Store a spectrum. A full disk is no error: the cache stays smaller."""
        path = self._path(key)
        data = io.BytesIO()
        np.savez(data, **asdict(spectrum))
        with suppress(OSError):
            path.parent.mkdir(exist_ok=True)
            write_atomically(str(path), data.getvalue(), mode=0o666)

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Yield True if this process may compute the spectrum: no other process has claimed it.

        A claim is a lock on one byte of one file, at an offset that the key gives; it ends with its process.
        """
        offset = int(key[:10], 16)  # file systems have no larger offsets
        is_mine = self._lock(offset, os.F_TLOCK)
        try:
            yield is_mine
        finally:
            if is_mine:
                self._lock(offset, os.F_ULOCK)

    def _lock(self, offset: int, command: int) -> bool:
        """Return False if another process has the lock. On a file system without locks, all may compute."""
        try:
            with self._guard:
                os.lseek(self._locks, offset, os.SEEK_SET)
                os.lockf(self._locks, command, 1)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.npz"
