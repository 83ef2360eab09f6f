"""`gpusched exec`: a command on this terminal that has GPUs to itself, from the wait for them to their return."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from gpusched.common import processes
from gpusched.common.errors import GpuschedError
from gpusched.config.layers import LoadedSettings
from gpusched.core.jobs.outcome import exit_code_of
from gpusched.core.model import NOTHING_USED, Outcome, OutcomeKind, Sample
from gpusched.host.gpus.claims import Claims
from gpusched.host.gpus.device_source import DeviceSource
from gpusched.host.queue import interactive
from gpusched.host.queue.interactive import Booking
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store
from gpusched.lists.submit import SubmitOptions
from gpusched.operations.box.devices import open_devices
from gpusched.operations.interactive.claim import CLOCK, GpuWish, HeldGpus, claimed_gpus
from gpusched.operations.interactive.foreground import Foreground, refuse_missing
from gpusched.operations.interactive.watch import Terms, Watch
from gpusched.operations.queues import Notify
from gpusched.operations.run import submit
from gpusched.operations.run.stored import with_stored

LABEL = "an interactive session"
OF_A_SHELL = Terms(for_s=8 * 3600.0, idle_s=2 * 3600.0, idle_stops=True)
STOP_STEP_S = 0.2
SHOWN_LEFTOVERS = 8


def default_queue(loaded: LoadedSettings) -> tuple[QueueDir, SubmitOptions]:
    """Return this user's default queue, made if need be and without lost attempts, and the options by which it runs."""
    queue_dir = submit.find_standing_queue(None, loaded.settings.state_dir)
    submit.make_queue(queue_dir)
    with Store(queue_dir.database) as store:
        interactive.close_lost(store)
        return queue_dir, SubmitOptions(with_stored(loaded, store), os.fsencode(os.getcwd()))


def run_command(
    words: Sequence[str], loaded: LoadedSettings, wish: GpuWish, for_s: float | None, notify: Notify
) -> int:
    """Wait for GPUs, run a command on them, or a shell if there is none, for a time; return its exit code."""
    argv = list(words) or [os.environ.get("SHELL") or "/bin/sh"]
    refuse_missing(argv[0])
    terms = (Terms() if words else OF_A_SHELL).with_stated(for_s, loaded)
    queue_dir, options = default_queue(loaded)
    with ExitStack() as stack:
        devices = stack.enter_context(open_devices(options.settings, wish.gpus))
        held = stack.enter_context(claimed_gpus(devices, options, queue_dir, wish, LABEL, notify))
        booking = interactive.book(queue_dir, shlex.join(argv), held.devices, terms.for_s)
        session = _Session(held, booking, options, terms, notify)
        try:
            session.run(argv, devices.source)
        finally:
            try:
                booking.close(session.outcome, session.usage)
            except GpuschedError as error:
                notify(f"how it ended is not noted: {error}")
    _name_leftovers(held, booking, options.settings.claims_dir, notify)
    return exit_code_of(session.outcome)


class _Session:
    """The command while it runs, and how it has ended."""

    def __init__(self, held: HeldGpus, booking: Booking, options: SubmitOptions, terms: Terms, notify: Notify) -> None:
        self.outcome = Outcome(OutcomeKind.NOT_STARTED, cause="bad_command")
        self.usage = NOTHING_USED
        self._held, self._booking, self._settings = held, booking, options.settings
        self._terms, self._say = terms, notify

    def _notify(self, text: str) -> None:
        with suppress(OSError):  # the terminal is gone: the command and its time go on
            self._say(text)

    def run(self, argv: list[str], source: DeviceSource) -> None:
        """Run the command to its end."""
        held, booking = self._held, self._booking
        self._notify(f"{held.label}{self._terms.describe()}")
        environment = {**os.environb, **held.variables, **booking.variables}
        command = Foreground(argv, environment, [*held.fds, booking.life])
        self.outcome = Outcome(OutcomeKind.LOST)  # until its end is known
        watch = Watch(held, source, self._terms, lambda sample: _own(sample, command, booking), self._notify)
        stopped: Outcome | None = None
        while (status := command.poll(watch.end_at)) is None:
            stopped = stopped or watch.look(CLOCK.moment(), self._settings.poll_interval)
            if command.signals.is_terminated and stopped is None:
                kind = OutcomeKind.CANCELLED if booking.is_cancelled() else OutcomeKind.INTERRUPTED
                stopped = Outcome(kind)
            if stopped is not None:
                command.stop(self._settings.grace, booking.marker)
            pause_s = STOP_STEP_S if stopped is not None else watch.deadline_s() - time.monotonic()
            command.signals.wait(pause_s, source.fileno())
        code = os.waitstatus_to_exitcode(status)
        ended = Outcome(OutcomeKind.EXITED, code) if code >= 0 else Outcome(OutcomeKind.SIGNALLED, signal=-code)
        self.usage = watch.usage
        self.outcome = ended if stopped is None else replace(ended, kind=stopped.kind, cause=stopped.cause)


def _own(sample: Sample, command: Foreground, booking: Booking) -> set[int]:
    """Return the processes of the command that a GPU lists."""
    listed = {process.pid for process in sample.processes or ()}
    return listed & set(command.family(booking.marker)) if listed else set()


def _name_leftovers(held: HeldGpus, booking: Booking, claims_dir: str | None, notify: Notify) -> None:
    """Say which processes of the command still hold its GPUs."""
    claims = Claims(claims_dir)
    if any(claims.held_path(device.uuid) for device in held.devices):
        pids = processes.marked_processes(booking.marker)
        if left := [f"{pid} {name}" for pid in pids if (name := processes.name_of(pid))]:
            notify(f"{held.label} is kept by what the command left running: {', '.join(left[:SHOWN_LEFTOVERS])}")
