"""What a dispatcher knows of its devices, when their source is slow or silent."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

from gpusched.core.model import Reading, Sample
from gpusched.core.plan.availability import Criteria, DeviceState, OwnUse
from gpusched.dispatcher.device_book import SILENT_S, DeviceBook
from gpusched.dispatcher.timers import Moment
from gpusched.host.gpus.simulated import LocalSource
from tests.support import build

DEVICES = (build.device(0), build.device(1))


def reading(at: float, *, complete: bool = True) -> Reading:
    samples = tuple(Sample(device.uuid, at, 0, device.total_bytes) for device in DEVICES)
    return Reading(at, at, DEVICES if complete else (), samples, complete)


class Scripted(LocalSource):
    """A source whose readings a test brings."""

    def request(self, uuids: frozenset[str] | None, now: float) -> None:
        return None

    def bring(self, *readings: Reading) -> None:
        self._ready.extend(readings)


def make_book(source: Scripted) -> DeviceBook:
    claims: Any = None
    book = DeviceBook(source, claims, "/q", reading(0.0))
    book.configure([device.uuid for device in DEVICES], Criteria(max_checks=1))
    return book


def take_in(book: DeviceBook, now_s: float) -> str:
    book.take_in(Moment(now_s, now_s), lambda sample: OwnUse())
    return book.error


def test_a_poll_that_is_never_answered_is_an_outage() -> None:
    source = Scripted()
    book = make_book(source)
    for now_s in (0.0, 10.0, 20.0, 30.0):
        book.ask(Moment(now_s, now_s), poll=True)
        source.bring(reading(now_s, complete=False))  # single devices may answer meanwhile
        assert take_in(book, now_s) == ""
    assert take_in(book, SILENT_S) == f"the GPUs have not been read for {SILENT_S:g} s"
    assert {entry.availability.state for entry in book.entries.values()} == {DeviceState.UNKNOWN}
    source.bring(reading(SILENT_S + 1))
    assert take_in(book, SILENT_S + 1) == ""
    assert {entry.availability.state for entry in book.entries.values()} == {DeviceState.FREE}


def test_claims_that_were_taken_are_not_lost_when_the_descriptors_run_out() -> None:
    class ShortClaims:
        def has(self, uuid: str, fds: Any) -> bool:
            return False

        def try_acquire(self, uuid: str, queue: str, now: float) -> Any:
            if uuid == DEVICES[0].uuid:
                return SimpleNamespace(fds=[7])
            raise OSError(errno.EMFILE, "Too many open files")

    claims: Any = ShortClaims()
    book = DeviceBook(Scripted(), claims, "/q", reading(0.0))
    uuids = [device.uuid for device in DEVICES]
    book.configure(uuids, Criteria(max_checks=1))
    assert book.secure(uuids, [], Moment(0.0, 0.0)) == [7]
