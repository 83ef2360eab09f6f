"""Keeps a queue dispatched through failures that nobody foresaw: a new dispatcher takes over what runs, after a pause.

It knows nothing of the one that failed, but what people have asked of that: so this is what a start after a crash does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gpusched.common.errors import EXIT_SOFTWARE, GpuschedError
from gpusched.core.model import Event
from gpusched.dispatcher.loop import Dispatcher
from gpusched.dispatcher.options import Hooks
from gpusched.dispatcher.timers import Sleeper
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import TransientError

log = logging.getLogger("gpusched.dispatcher")

FAILURES_MAX, WITHIN_S = 5, 600.0  # so many failures within so long end it
PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 60.0  # before a new dispatcher; doubles with each failure


class Restarts:
    """The dispatchers of one process on one queue, one after the other."""

    def __init__(self, queue: QueueDir, hooks: Hooks) -> None:
        self._queue, self._hooks = queue, hooks
        self._failed_s: list[float] = []  # when dispatchers have failed, in monotonic seconds

    def run(self, make: Callable[[], Dispatcher]) -> tuple[int, Dispatcher]:
        """Run a dispatcher, or as many as it takes; return the exit code, and the last one.

        Raises GpuschedError when one of them must not go on, or when they fail again and again.
        """
        dispatcher: Dispatcher | None = None
        with Sleeper(self._queue.wake) as sleeper:  # hears the signals between two dispatchers
            while True:
                before = dispatcher
                try:
                    dispatcher = make()
                    return dispatcher.run(sleeper.take_signals(), before), dispatcher
                except Exception as error:
                    passes = before is not None and isinstance(error, TransientError)
                    if isinstance(error, GpuschedError) and not passes:
                        raise
                    until_s = self._hooks.clock.monotonic() + self._note(error)
                while not sleeper.has_signals and (left_s := until_s - self._hooks.clock.monotonic()) > 0:
                    sleeper.sleep(left_s)

    def _note(self, error: Exception) -> float:
        """Report a failure; return the pause after it. Raises GpuschedError after too many."""
        now_s = self._hooks.clock.monotonic()
        self._failed_s.append(now_s)
        log.error("this dispatcher has failed", exc_info=error)
        what = f"unexpected {type(error).__name__}: {error}"
        hint = f"running jobs go on; the traceback is in {self._queue.log}"
        if sum(now_s - failed_s < WITHIN_S for failed_s in self._failed_s) >= FAILURES_MAX:
            what = f"{what}; {FAILURES_MAX} such failures within {WITHIN_S / 60:g} minutes: leaving"
            raise GpuschedError(what, hint=f"{hint}; the same command takes them over", exit_code=EXIT_SOFTWARE)
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** (len(self._failed_s) - 1))
        text = f"{what}; the dispatcher begins anew in {pause_s:g} s; {hint}"
        self._hooks.observer.event(Event(self._hooks.clock.now(), "error", text))
        return pause_s
