"""Waiting for GPUs in the foreground, by the plan and the claims of the dispatcher. Starts nothing."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import NamedTuple

from gpusched.common.errors import EXIT_DISPATCHED_ELSEWHERE, GpuschedError
from gpusched.common.quantities import format_duration
from gpusched.common.text import without_numbers
from gpusched.core.model import Attempt, DeviceUse, JobRow
from gpusched.core.plan import observe
from gpusched.core.plan.availability import OwnUse
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import MARGIN_BYTES, Claim, Gather, Release, Start
from gpusched.dispatcher.actor import device_use, device_variables
from gpusched.dispatcher.device_book import DeviceBook
from gpusched.dispatcher.loop import board_of
from gpusched.dispatcher.ticket_book import TicketBook
from gpusched.dispatcher.timers import Clock, Moment, Timer
from gpusched.host.attempts import reaper
from gpusched.host.gpus.claims import Claims, HeldClaim
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, attempt_table
from gpusched.lists.submit import SubmitOptions, criteria
from gpusched.operations.box.devices import BoxDevices, check_devices
from gpusched.operations.queues import Notify

CLOCK = Clock()


class GpuWish(NamedTuple):
    """The GPUs that somebody wants for themselves: each with so much free memory, and so long a wait at most."""

    gpus: int = 1
    mem_bytes: int = 0
    wait_s: float | None = None


class HeldGpus(NamedTuple):
    """The GPUs that this process has claimed, and the variables that say so to a program; `what` they are held for."""

    devices: tuple[DeviceUse, ...]
    claims: tuple[HeldClaim, ...]
    variables: dict[bytes, bytes]
    what: str
    since_at: float

    @property
    def fds(self) -> list[int]:
        """The descriptors that hold them."""
        return [fd for claim in self.claims for fd in claim.fds]

    @property
    def label(self) -> str:
        """The GPUs in a sentence."""
        names = dict.fromkeys(device.name for device in self.devices)
        return f"GPU {', '.join(str(device.index) for device in self.devices)} ({', '.join(names)})"

    def tell(self, more: str = "") -> None:
        """Tell others what they are held for, with `more` behind it."""
        for claim in self.claims:
            claim.label(self.what + more, self.since_at)


@contextmanager
def claimed_gpus(
    devices: BoxDevices, options: SubmitOptions, queue_dir: QueueDir, wish: GpuWish, label: str, notify: Notify
) -> Iterator[HeldGpus]:
    """Wait until so many GPUs are free, and hold them; `label` tells others what for, `notify` gets why it waits.

    Raises GpuschedError for what this box can never serve, and (75) when the wait is over.
    """
    chosen = check_devices(options.settings, devices.first.devices, wish.gpus)
    _refuse_too_large(devices, chosen.uuids, wish)
    book = DeviceBook(devices.source, Claims(options.settings.claims_dir), label, devices.first)
    book.configure(chosen.uuids, criteria(options.settings))
    try:
        wait = _Wait(book, options, queue_dir, wish, notify)
        with closing(wait.tickets):
            uuids = wait.run()
        yield HeldGpus(
            tuple(device_use(book, uuid) for uuid in uuids),
            tuple(claim for uuid in uuids if (claim := book.entries[uuid].claim) is not None),
            device_variables(book, uuids, options.settings.visible_devices),
            label,
            time.time(),
        )
    finally:
        book.release_all()


def _refuse_too_large(devices: BoxDevices, uuids: tuple[str, ...], wish: GpuWish) -> None:
    boards = [device for device in devices.first.devices if device.uuid in uuids]
    most = [each.total_bytes - each.reserved_bytes - MARGIN_BYTES for each in boards if each.total_bytes]
    fitting = sum(wish.mem_bytes <= each for each in most) + len(boards) - len(most)
    if wish.mem_bytes and fitting < wish.gpus:
        problem = f"only {fitting} of your GPUs can have so much memory free, and you ask for {wish.gpus}"
        raise GpuschedError(problem, where="--mem", hint="`gpusched devices` shows the GPUs")


class _Wait:
    """The wait for GPUs: the plan of a dispatcher with a single job."""

    def __init__(
        self, book: DeviceBook, options: SubmitOptions, queue_dir: QueueDir, wish: GpuWish, notify: Notify
    ) -> None:
        self._book, self._options, self._queue_dir, self._wish, self._notify = book, options, queue_dir, wish, notify
        self.tickets = TicketBook(book)
        self._job = JobRow(0, gpus=wish.gpus, mem_bytes=wish.mem_bytes)
        self._poll, self._attempts = Timer(), list[Attempt]()
        self._said = ""

    def run(self) -> tuple[str, ...]:
        """Return the devices, once they are held and were looked at since."""
        until_s = None if self._wish.wait_s is None else time.monotonic() + self._wish.wait_s
        reason = ""
        while True:
            now = CLOCK.moment()
            self._observe(now)
            board = replace(board_of(self._book, {}, now.at, self._options.limits), sharing=self.tickets.sharing)
            plan = make_plan(observe.snapshot(board, now.at, waiting=[self._job], attempts=self._attempts))
            self.tickets.note(plan, now)
            for action in plan.actions:
                if isinstance(action, Start):
                    return action.devices
                if isinstance(action, Release):
                    self._book.entries[action.uuid].release()
                elif isinstance(action, Claim | Gather):
                    self._book.claim(action.devices, CLOCK.moment())
            if 0 in plan.reasons:
                reason = plan.reasons[0].sentence
                self._say(reason)
            if until_s is not None and now.monotonic_s >= until_s:
                waited = format_duration(self._wish.wait_s or 0.0)
                raise GpuschedError(f"no GPU in {waited}: {reason}", exit_code=EXIT_DISPATCHED_ELSEWHERE)
            self._sleep(now, until_s)

    def _observe(self, now: Moment) -> None:
        polled = self._poll.is_due(now)
        if polled:
            self._poll.repeat(now, self._options.settings.poll_interval)
            with Store(self._queue_dir.database, read_only=True) as store:  # they count in the limits of the queue
                running = attempt_table.running(store)
            alive = [pair for pair in running if reaper.is_alive(self._queue_dir.state, pair[0].id, pair[1].number)]
            self._attempts = [observe.open_attempt(job, row) for job, row in alive]
        if polled or self.tickets.is_claiming:
            self.tickets.look(now, self._options.settings, polled=polled)
        self._book.ask(now, poll=polled)
        self._book.take_in(now, lambda sample: OwnUse())

    def _say(self, reason: str) -> None:
        """Say why it waits, unless only numbers have changed since it was said."""
        kind = without_numbers(reason)
        if kind != self._said:
            self._said = kind
            self._notify(reason)

    def _sleep(self, now: Moment, until_s: float | None) -> None:
        moments = [each for each in (self._poll.due_s, self._book.deadline_s(), until_s) if each is not None]
        fd = self._book.source.fileno()
        select.select([] if fd is None else [fd], [], [], max(0.0, min(moments) - now.monotonic_s))
