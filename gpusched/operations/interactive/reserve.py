"""Reservations: a small process of its own holds GPUs for programs that `gpusched exec` cannot start."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import ExitStack

from gpusched.common import processes
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.config.layers import LoadedSettings
from gpusched.core.model import Outcome, OutcomeKind, Sample
from gpusched.host.attempts import reaper
from gpusched.host.queue import interactive
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table
from gpusched.lists.submit import SubmitOptions
from gpusched.operations.box.devices import RESERVATION, UNSET, open_devices
from gpusched.operations.change.requests import terminate
from gpusched.operations.interactive.claim import CLOCK, GpuWish, HeldGpus, claimed_gpus
from gpusched.operations.interactive.foreground import SignalPipe
from gpusched.operations.interactive.run_command import default_queue
from gpusched.operations.interactive.watch import Terms, Watch
from gpusched.operations.look.status import read_attempt
from gpusched.operations.queues import Notify, ignore

COMMAND = "gpusched reserve"
UNLESS_STATED = Terms(idle_s=1800.0, idle_stops=True)
END_WAIT_S = 5.0
_AT_ITS_END = Outcome(OutcomeKind.EXITED, 0)


def reserve(loaded: LoadedSettings, wish: GpuWish, for_s: float, notify: Notify) -> dict[bytes, bytes]:
    """Wait for GPUs and have a process of its own hold them for a time; return the variables that name them."""
    terms = UNLESS_STATED.with_stated(for_s, loaded)
    queue_dir, options = default_queue(loaded)
    with ExitStack() as stack:
        devices = stack.enter_context(open_devices(options.settings, wish.gpus))
        held = stack.enter_context(claimed_gpus(devices, options, queue_dir, wish, RESERVATION, notify))
        until = time.strftime("%H:%M:%S", time.localtime(time.time() + for_s))
        held = held._replace(what=f"{RESERVATION} until {until[:-3]}")
        held.tell()
        read, write = os.pipe2(os.O_CLOEXEC)
        if os.fork() == 0:
            try:
                os.close(read)
                _hold(held, queue_dir, options, terms, write)
            finally:
                os._exit(0)
        os.close(write)
        with open(read, encoding="ascii") as file:
            job_id = file.read()
    if not job_id:
        hint = "is the disk of your queue full?"
        raise GpuschedError("cannot be reserved", where=held.label, hint=hint, exit_code=EXIT_CANNOT_WORK)
    notify(f"{held.label} is yours until {until}{terms.describe()}; `gpusched reserve --end {job_id}` gives it back")
    notify(f"others may have it then, and your shell still names it: {UNSET}")
    return held.variables


def _hold(held: HeldGpus, queue_dir: QueueDir, options: SubmitOptions, terms: Terms, write: int) -> None:
    """Hold the GPUs, in a session of its own, until the time is over or somebody asks for the end."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = SignalPipe()
    booking = interactive.book(queue_dir, COMMAND, held.devices, terms.for_s)
    os.write(write, b"%d" % booking.job_id)
    os.close(write)
    ended: Outcome | None = None
    with open_devices(options.settings) as devices:
        watch = Watch(held, devices.source, terms, _own, ignore)
        while ended is None and not signals.is_terminated:
            ended = watch.look(CLOCK.moment(), options.settings.poll_interval)
            signals.wait(0.0 if ended else watch.deadline_s() - time.monotonic(), devices.source.fileno())
    if ended is None and booking.is_cancelled():
        ended = Outcome(OutcomeKind.CANCELLED)
    is_planned = ended is None or (ended.kind is OutcomeKind.TIMED_OUT and not ended.cause)
    booking.close(_AT_ITS_END if ended is None or is_planned else ended, watch.usage)


def _own(sample: Sample) -> set[int]:
    """Return the processes of this user on a GPU."""
    user = processes.user_name(os.getuid())
    return {process.pid for process in sample.processes or () if process.user == user}


def end_reservation(loaded: LoadedSettings, job_id: int | None) -> int:
    """Give the GPUs of a reservation, or of the only one, back; return its id. Raises GpuschedError without it."""
    queue_dir, _ = default_queue(loaded)
    with Store(queue_dir.database) as store:
        running = [job.id for job, _ in attempt_table.interactive(store) if job.command == os.fsencode(COMMAND)]
    known = ", ".join(map(str, running)) or "none"
    chosen = running if job_id is None else [each for each in running if each == job_id]
    if len(chosen) != 1:
        what = "there is no such reservation" if job_id is not None or not running else "which one is not clear"
        raise GpuschedError(what, hint=f"your reservations: {known}; gpusched reserve --end ID")
    _end(queue_dir, chosen[0])
    return chosen[0]


def _end(queue_dir: QueueDir, job_id: int) -> None:
    """Ask the process that holds the GPUs to end, and wait for that, so that nobody sees its claims any more."""
    holder = reaper.shepherd_handle(read_attempt(queue_dir, job_id, 1).fields)
    terminate(queue_dir, job_id, 1)
    if holder is not None:
        select.select([holder], [], [], END_WAIT_S)
        os.close(holder)
