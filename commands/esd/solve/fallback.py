"""Recognise missing memory and a lost CUDA context, and try a layer in smaller ways."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from gpusched.common.text import one_line

from .spectrum import BLOCK, SMALL_BLOCK

T = TypeVar("T")

CPU = torch.device("cpu")

_MMAP_THRESHOLD, _BLOCK_BYTES = -3, 1 << 20  # of mallopt

_GPU_FULL = re.compile(r"CUDA out of memory|CUDA error: out of memory|CU[A-Z]+_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)")
_HOST_FULL = re.compile(r"DefaultCPUAllocator|not enough memory|[Cc]an(?:'t|not) allocate memory")
_SOLVER_FAILED = re.compile(r"(cusolver|magma) error|CUSOLVER_STATUS", re.IGNORECASE)
# After these errors the card answers nothing more to this process.
_POISONED = re.compile(
    r"CUDA error: (?!out of memory)|device-side assert|illegal (memory access|instruction)"
    r"|unspecified launch failure|uncorrectable (ECC|NVLink)"
)


class Poisoned(Exception):
    """A CUDA error after which only a new process can use the card. Its text is CUDA's."""


class NoRoom(Exception):
    """Too little memory for a layer, on the device and on the CPU."""


def return_freed_blocks() -> None:
    """Return freed memory to the system at once, if the C library can.

    By default, glibc keeps freed blocks of up to 32 MiB for each thread.
    """
    try:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)
    except (AttributeError, OSError):
        pass


def ways(device: torch.device) -> Iterator[tuple[torch.device, int, str]]:
    """Yield the ways to try a layer: device, rows that are converted at a time, and words for the note."""
    yield device, BLOCK, ""
    yield device, SMALL_BLOCK, "smaller blocks"
    if device.type != "cpu":
        yield CPU, BLOCK, "the CPU"
        yield CPU, SMALL_BLOCK, "the CPU and smaller blocks"


def fallback(compute: Callable[[torch.device, int], T], device: torch.device) -> tuple[T, str]:
    """Return the result of `compute` in the first way for which there is memory, and a note if that is a later one.

    After an error of the GPU's solver the CPU is tried, too. Raises NoRoom if there is memory in no way, Poisoned, and
    any other error of `compute`.
    """
    why = ""
    for where, block, words in ways(device):
        try:
            return compute(where, block), f"{why}: done with {words}" if words else ""
        except Exception as error:
            failed = device.type == "cuda" and isinstance(error, RuntimeError) and _SOLVER_FAILED.search(str(error))
            why = shortage(error) or ("the solver of the GPU failed" if failed else "")
            if not why:
                raise
        if device.type == "cuda":
            torch.cuda.empty_cache()
    raise NoRoom(why)


def shortage(error: BaseException) -> str:
    """Return which memory an error says is missing; "" for another error. Raises Poisoned for a lost CUDA context."""
    text = str(error)
    if isinstance(error, MemoryError) or _HOST_FULL.search(text):
        return "out of host memory"
    if isinstance(error, torch.OutOfMemoryError) or _GPU_FULL.search(text):
        return "out of GPU memory"
    if isinstance(error, RuntimeError) and _POISONED.search(text):
        raise Poisoned(one_line(text.partition("\n")[0])) from error
    return ""
