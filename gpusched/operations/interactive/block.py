"""`with gpusched.gpu()`: a GPU for a block of Python, in this process and its forked children."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.quantities import parse_size
from gpusched.config.layers import load
from gpusched.core.model import DeviceUse, Outcome, OutcomeKind
from gpusched.host.queue import interactive
from gpusched.operations.box.devices import open_devices
from gpusched.operations.interactive.claim import GpuWish, claimed_gpus
from gpusched.operations.interactive.run_command import LABEL, default_queue
from gpusched.operations.queues import ignore

_VARIABLES = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES")


@contextmanager
def gpu(mem: str | None = None, wait_s: float | None = None, **settings: object) -> Iterator[DeviceUse]:
    """Wait for a free GPU, with `mem` for one that has this much memory free, and have it alone within the block.

    CUDA_DEVICE_ORDER and CUDA_VISIBLE_DEVICES are set to it, so that CUDA calls it device 0. It is given back when the
    block and all children that were forked in it have ended. `settings` are those of `gpusched config`. Raises
    GpuschedError after `wait_s`, and if CUDA is initialised already.
    """
    _refuse_late()
    queue_dir, options = default_queue(load(settings))
    wish = GpuWish(1, 0 if mem is None else parse_size(mem), wait_s)
    before = {name: os.environ.get(name) for name in _VARIABLES}
    with ExitStack() as stack:
        devices = stack.enter_context(open_devices(options.settings, 1))
        held = stack.enter_context(claimed_gpus(devices, options, queue_dir, wish, LABEL, ignore))
        devices.close()
        booking = interactive.book(queue_dir, f"gpusched.gpu() in {sys.argv[0] or 'Python'}", held.devices, None)
        owner, code = os.getpid(), 1
        os.environ.update({name: os.fsdecode(held.variables[os.fsencode(name)]) for name in _VARIABLES})
        try:
            yield held.devices[0]
            code = 0
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})
            if os.getpid() == owner:  # a forked child that leaves the block is none of its ends
                booking.close(Outcome(OutcomeKind.EXITED, code))


def is_cuda_initialised() -> bool:
    """Return True if this process has used a GPU: the variables that choose one would come too late."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    is_late = cuda is not None and bool(cuda.is_initialized())
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            is_late |= os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia-uvm")
    return is_late


def _refuse_late() -> None:
    if is_cuda_initialised():
        hint = "open the block before anything uses a GPU, or start the script with `gpusched exec`"
        raise GpuschedError("CUDA is initialised already", where="gpusched.gpu", hint=hint, exit_code=EXIT_CANNOT_WORK)
