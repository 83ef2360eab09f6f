"""The time and the idleness of an interactive job, on a clock of the test."""

from __future__ import annotations

import time
from typing import cast

from gpusched.core.model import DeviceProcess, DeviceUse, OutcomeKind, Reading, Sample
from gpusched.dispatcher.timers import Moment
from gpusched.host.gpus.claims import HeldClaim
from gpusched.host.gpus.simulated import LocalSource
from gpusched.operations.interactive.claim import HeldGpus
from gpusched.operations.interactive.watch import Terms, Watch

HOUR = 3600.0


class Board(LocalSource):
    """A source of one GPU, on which there is a process or none."""

    used = True

    def _read(self, uuids: frozenset[str] | None, now: float) -> Reading:
        processes = (DeviceProcess(7, 1 << 30),) if self.used else ()
        return Reading(now, now, (), (Sample("GPU-a", now, 0, 1 << 34, processes),))


class Desk:
    """A watch of one GPU, and what was said."""

    def __init__(self, terms: Terms) -> None:
        self.source, self.said = Board(), list[str]()
        self.told: list[str] = []
        use, claim = DeviceUse("GPU-a", 3, "T4"), cast(HeldClaim, self)
        held = HeldGpus((use,), (claim,), {}, "an interactive session", 0.0)
        self.watch = Watch(held, self.source, terms, lambda s: {p.pid for p in s.processes or ()}, self.said.append)
        self.began_s = time.monotonic()

    def label(self, text: str, since: float) -> None:
        self.told.append(text)

    def after(self, seconds: float) -> OutcomeKind | None:
        ended = self.watch.look(Moment(seconds, self.began_s + seconds), 0.0)
        return None if ended is None else ended.kind


def test_time_is_announced_ten_minutes_before_its_end_and_once() -> None:
    desk = Desk(Terms(for_s=8 * HOUR))
    assert desk.after(8 * HOUR - 700) is None and desk.said == []
    assert desk.after(8 * HOUR - 590) is None and desk.after(8 * HOUR - 10) is None
    assert len(desk.said) == 1 and "GPU 3 (T4) will be given back in 9m" in desk.said[0]
    assert desk.after(8 * HOUR + 1) is OutcomeKind.TIMED_OUT and "its time is over" in desk.said[1]


def test_a_short_time_is_not_announced() -> None:
    desk = Desk(Terms(for_s=300.0))
    assert desk.after(290.0) is None and desk.said == []


def test_idle_one_is_announced_again_after_it_was_used() -> None:
    desk = Desk(Terms(idle_s=2 * HOUR, idle_stops=True))
    desk.after(0.0)
    desk.source.used = False
    assert desk.after(2 * HOUR - 500) is None and len(desk.said) == 1
    desk.source.used = True
    assert desk.after(2 * HOUR) is None
    desk.source.used = False
    assert desk.after(4 * HOUR - 500) is None and len(desk.said) == 2
    assert desk.after(4 * HOUR + 1) is OutcomeKind.TIMED_OUT


def test_others_see_since_when_nothing_is_on_it() -> None:
    desk = Desk(Terms())
    desk.source.used = False
    desk.after(59.0)
    assert desk.told == []
    desk.after(61.0)
    desk.after(120.0)
    assert len(desk.told) == 1 and desk.told[0].startswith("an interactive session, idle since ")
    desk.source.used = True
    desk.after(130.0)
    assert desk.told[1:] == ["an interactive session"]


def test_report_is_made_once_for_each_idle_time() -> None:
    desk = Desk(Terms(idle_s=10.0))
    desk.source.used = False
    assert [desk.after(each) for each in (9.0, 11.0, 20.0)] == [None] * 3
    assert len(desk.said) == 1 and "no process of yours was on it for 10s" in desk.said[0]


def test_terms_that_nobody_states_are_those_of_a_shell() -> None:
    from gpusched.config.layers import load
    from gpusched.operations.interactive.run_command import OF_A_SHELL

    loaded = load({"idle_timeout": "5m"}, environ={}, cwd="/")
    assert OF_A_SHELL.with_stated(None, loaded) == OF_A_SHELL._replace(idle_s=300.0)
