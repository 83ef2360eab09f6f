"""Recognise missing memory and a lost CUDA context, and solve a layer on the CPU if the GPU cannot."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import TypeVar

import torch

from gpusched.common.text import one_line

T = TypeVar("T")

CPU = torch.device("cpu")

_MMAP_THRESHOLD, _BLOCK_BYTES = -3, 1 << 20  # of mallopt

_OBSTACLES = {
    "out of host memory": re.compile(r"DefaultCPUAllocator|not enough memory|[Cc]an(?:'t|not) allocate memory"),
    "out of GPU memory": re.compile(r"CUDA(?: error:)? out of memory|CU[A-Z]+_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)"),
    "the solver of the GPU failed": re.compile(r"(cusolver|magma) error|CUSOLVER_STATUS", re.IGNORECASE),
}
# After these errors the card answers nothing more to this process.
_POISONED = re.compile(
    r"CUDA error: (?!out of memory)|device-side assert|illegal (memory access|instruction)"
    r"|unspecified launch failure|uncorrectable (ECC|NVLink)"
)


class Poisoned(Exception):
    """A CUDA error after which only a new process can use the card. Its text is CUDA's."""


class NoRoom(Exception):
    """A layer that can be solved neither on the device nor on the CPU."""


def return_freed_blocks() -> None:
    """Return freed memory to the system at once, if the C library can.

    By default, glibc keeps freed blocks of up to 32 MiB for each thread.
    """
    try:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)
    except (AttributeError, OSError):
        pass


def fallback(compute: Callable[[torch.device], T], device: torch.device) -> tuple[T, str]:
    """Return the result of `compute` on the device or, if that cannot do it, on the CPU; a note says so.

    Raises NoRoom if neither can, Poisoned, and any other error of `compute`.
    """
    why = ""
    for where in dict.fromkeys((device, CPU)):
        try:
            return compute(where), f"{why}: done with the CPU" if why else ""
        except Exception as error:
            why = shortage(error)
            if not why:
                raise
        if device.type == "cuda":
            torch.cuda.empty_cache()
    raise NoRoom(why)


def shortage(error: BaseException) -> str:
    """Return which memory an error says is missing; "" for another error. Raises Poisoned for a lost CUDA context."""
    text = str(error)
    if isinstance(error, MemoryError):
        return "out of host memory"
    for why, pattern in _OBSTACLES.items():
        if pattern.search(text):
            return why
    if _POISONED.search(text):
        raise Poisoned(one_line(text.partition("\n")[0])) from error
    return ""
