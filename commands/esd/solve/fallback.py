"""Out of memory, and what else goes wrong on a device: told apart, and a layer tried in smaller ways. Reads nothing."""

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
# After these nothing that this process asks of the card will be answered.
_POISONED = re.compile(
    r"CUDA error: (?!out of memory)|device-side assert|illegal (memory access|instruction)"
    r"|unspecified launch failure|uncorrectable (ECC|NVLink)"
)


class Poisoned(Exception):
    """A CUDA error after which only a new process can go on; its text is CUDA's."""


class NoRoom(Exception):
    """A layer for which there is no memory, on the device or beside it."""


def return_freed_blocks() -> None:
    """Let what is freed go back to the system at once, for this process; nothing where the C library has no such wish.

    Left alone, glibc keeps freed blocks of up to 32 MiB for each thread, twice of what the greatest layer needs.
    """
    try:
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)
    except (AttributeError, OSError):
        pass


def ways(device: torch.device) -> Iterator[tuple[torch.device, int, str]]:
    """How to try a layer, one after the other: device, rows converted at once, and what to say of it."""
    yield device, BLOCK, ""
    yield device, SMALL_BLOCK, "smaller blocks"
    if device.type != "cpu":
        yield CPU, BLOCK, "the CPU"
        yield CPU, SMALL_BLOCK, "the CPU and smaller blocks"


def fallback(compute: Callable[[torch.device, int], T], device: torch.device) -> tuple[T, str]:
    """What `compute` gives in the first way for which there is memory, and a note if it was not the first of all.

    A solver of the GPU that fails is left for the CPU's, too. Raises NoRoom if there is memory in no way, Poisoned, and
    whatever else `compute` raises.
    """
    why = ""
    for place, block, words in ways(device):
        try:
            return compute(place, block), f"{why}: done with {words}" if words else ""
        except Exception as error:
            failed = device.type == "cuda" and isinstance(error, RuntimeError) and _SOLVER_FAILED.search(str(error))
            why = shortage(error) or ("the solver of the GPU failed" if failed else "")
            if not why:
                raise
        if device.type == "cuda":
            torch.cuda.empty_cache()
    raise NoRoom(why)


def shortage(error: BaseException) -> str:
    """Which memory was short, if that is what the error says; else empty. Raises Poisoned for a dead CUDA context."""
    text = str(error)
    if isinstance(error, MemoryError) or _HOST_FULL.search(text):
        return "out of host memory"
    if isinstance(error, torch.OutOfMemoryError) or _GPU_FULL.search(text):
        return "out of GPU memory"
    if isinstance(error, RuntimeError) and _POISONED.search(text):
        raise Poisoned(one_line(text.partition("\n")[0])) from error
    return ""
