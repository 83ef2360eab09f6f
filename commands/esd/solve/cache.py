"""Spectra by the content of their tensor: what one model had computed, another one with the same tensor reads.

Adapters on one base and finetunes with frozen layers share most of their tensors. Several processes may use one
directory: a spectrum is written whole or not at all, and while one process computes it, another one turns to its next
layer. Deletes nothing, and never stands in for a spectrum that it cannot read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from gpusched.esd.model_record import CONVENTION

from ..options import Options
from .spectrum import Spectrum

_FORMAT = 1  # of the entries


def content_key(tensor: torch.Tensor, options: Options, *, convolution: bool) -> str:
    """A name for all that a layer's spectrum depends on: bytes, shape, type and way."""
    way = f"{options.solver}:{options.evals_thresh!r}" if options.solver == "auto" else options.solver
    told = f"{_FORMAT} {CONVENTION} {tensor.dtype} {tuple(tensor.shape)} {way} {options.farms} {convolution}"
    found = hashlib.sha256(told.encode())
    plain = tensor.contiguous()
    if plain.numel():
        found.update(plain.reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


class SpectraCache:
    """A directory of spectra. Safe for many processes; in one process, for many threads."""

    def __init__(self, directory: Path) -> None:
        """OSError if there can be no such directory."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._locks = os.open(directory / "locks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        self._guard = threading.Lock()
        self._mine: set[int] = set()

    def close(self) -> None:
        os.close(self._locks)

    def get(self, key: str) -> Spectrum | None:
        """What was put, if it is there and whole."""
        try:
            with open(self._path(key), "rb") as file, np.load(file, allow_pickle=False) as stored:
                evals = np.asarray(stored["evals"], dtype=np.float64)
                return Spectrum(evals, str(stored["solver"]), str(stored["device"]), str(stored["note"]))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def put(self, key: str, found: Spectrum) -> None:
        """Keep it. A disk that is full is no error: the cache is then smaller."""
        path = self._path(key)
        temporary = path.with_name(f".{key}.{os.getpid()}.{threading.get_ident()}")
        try:
            path.parent.mkdir(exist_ok=True)
            with open(temporary, "xb") as file:
                np.savez(file, evals=found.evals, solver=found.solver, device=found.device, note=found.note)
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Whether this thread alone may compute it now: no other one here, no other process, has claimed it.

        A claim is a lock on one byte of one file, at a place that the key gives; it ends with its holder.
        """
        place = int(key[:10], 16)  # a file system has no places further on
        with self._guard:
            taken = place not in self._mine and self._lock(place, os.F_TLOCK)
            if taken:
                self._mine.add(place)
        try:
            yield taken
        finally:
            if taken:
                with self._guard:
                    self._lock(place, os.F_ULOCK)
                    self._mine.discard(place)

    def _lock(self, place: int, command: int) -> bool:
        """False if another process has it. Where a file system has no locks, all may compute and none waits."""
        os.lseek(self._locks, place, os.SEEK_SET)
        try:
            os.lockf(self._locks, command, 1)
        except OSError as error:
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def _path(self, key: str) -> Path:
        return self._directory / key[:2] / f"{key}.npz"
