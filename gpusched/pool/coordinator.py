"""The coordinator of a pool: gives items to the workers, stores what they answer, adds workers while that pays.

One thread, one loop, one writer. What it must not forget is in the items' store; who has which item is only known here,
and ends with the connection of the worker. After a kill the workers tell the next coordinator what they have.
"""

from __future__ import annotations

import signal
import time
from collections import deque

from gpusched.common.processes import send_signal
from gpusched.common.progress_file import ProgressFile
from gpusched.common.quantities import format_duration
from gpusched.host.store import TransientError
from gpusched.host.store.items import ItemCounts, ItemOutcome, ItemStore, OpenItem
from gpusched.pool.backlog import Backlog
from gpusched.pool.crew import Crew
from gpusched.pool.messages import Answer, Answers, Broken, Failure, Hello, Leave, Message, Ready, Stored, Work
from gpusched.pool.options import PoolOptions
from gpusched.pool.peers import Peer, Peers
from gpusched.pool.verdicts import ItemVerdict, NextTry, after_death, after_failure, error_outcome

COMMIT_S = 0.1
LOST_S = 0.3  # after the end of a worker: if the pool is being stopped, a signal comes here too, and nobody is blamed
SHORT_S = 0.02  # items that take longer are not sent ahead: a round trip costs less than a thousandth of that
RETURN_S = 5.0  # for the workers of an earlier coordinator to say what they have
END_S = 30.0  # for workers to tear down


class Coordinator:
    """One run of a coordinator, from the first worker to the last outcome."""

    def __init__(self, options: PoolOptions, store: ItemStore, peers: Peers, crew: Crew) -> None:
        self._options, self._store, self._peers, self._crew = options, store, peers, crew
        self._backlog = Backlog(store.open_items)
        self._counts = store.counts()
        self._error_limit = options.error_limit(self._counts.total)
        self._progress = ProgressFile("items")
        self._outcomes: dict[int, ItemOutcome] = {}  # that are not stored yet
        self._trials: dict[int, OpenItem] = {}
        self._commit_at = 0.0
        self._lost: deque[tuple[float, Peer]] = deque()  # workers that are gone, and when their items are taken back
        self.is_stopped = False
        self._returning = crew.running_jobs()  # workers of an earlier coordinator, which may have items
        self._returning_until = time.monotonic() + RETURN_S
        self.problem = ""  # the reason why it stopped before the end

    def run(self) -> ItemCounts:
        """Work until every item has an outcome, or no more is possible; return the counts."""
        signal.signal(signal.SIGTERM, self._stop)
        while not self._is_over():
            for peer, messages in self._peers.wait(COMMIT_S / 2):
                self._take_in(peer, messages)
            now = time.monotonic()
            self._end_late_items(now)
            if now >= self._commit_at:
                self._commit()
                self._commit_at = now + COMMIT_S
                self._look_around(now)
        self._commit()
        if not self.is_stopped:
            self._end()
        return self._store.counts()

    def _stop(self, number: int, frame: object) -> None:
        """Stop at once: the workers get the same signal."""
        self.is_stopped = True
        self.problem = "it was stopped"

    # ---- what comes in ----

    def _take_in(self, peer: Peer, messages: list[Message] | None) -> None:
        if messages is None:
            self._lost.append((time.monotonic() + LOST_S, peer))
            return
        for message in messages:
            if isinstance(message, Answers):
                self._take_answers(peer, message)
            elif isinstance(message, Hello):
                self._greet(peer, message)
            elif isinstance(message, Ready):
                peer.is_ready = True
                self._crew.note_ready(peer, message)
            elif isinstance(message, Broken):
                peer.ended_by = message.failure.error
                self._crew.note_broken(peer, message)
        self._give(peer)

    def _greet(self, peer: Peer, hello: Hello) -> None:
        """Take note of a worker, and of the items that it has from an earlier coordinator."""
        peer.job, peer.device, peer.is_ready = hello.job, hello.device, hello.is_ready
        self._returning.discard(peer.job)
        for item in hello.items:
            if item not in self._outcomes and (row := self._store.open_item(item)) is not None:
                self._backlog.exclude(item)
                peer.lease[item] = row

    def _take_answers(self, peer: Peer, message: Answers) -> None:
        now = time.monotonic()
        peer.answers = message.number
        peer.batch_size = message.batch_size
        peer.item_s += 0.2 * ((now - peer.answered_at) / len(message.answers) - peer.item_s)
        peer.answered_at = now
        peer.done += len(message.answers)
        for answer in message.answers:
            item = peer.lease.pop(answer.item, None)
            peer.begun.pop(answer.item, None)
            if item is None:
                item = self._unexpected(answer.item)
            if item is not None:
                self._settle(peer, item, answer)
        peer.is_alone &= bool(peer.lease)

    def _unexpected(self, item: int) -> OpenItem | None:
        """Return an item that the worker was not known to have; None if it has an outcome already."""
        if item in self._outcomes or (row := self._store.open_item(item)) is None:
            return None
        for other in self._peers.all:
            if other.lease.pop(item, None) is not None:
                return row
        self._backlog.exclude(item)
        return row

    def _settle(self, peer: Peer, item: OpenItem, answer: Answer) -> None:
        if answer.failure is None:
            self._outcomes[item.id] = ItemOutcome(item.id, "result", answer.result)
            self._counts = self._counts._replace(results=self._counts.results + 1)
            return
        had_own_gpu = self._crew.is_only_one(peer, self._peers.all)
        verdict = after_failure(item, answer.failure, retries=self._options.item_retries, had_own_gpu=had_own_gpu)
        self._apply(verdict, answer.failure, peer.job)

    def _apply(self, verdict: ItemVerdict, failure: Failure, job: int) -> None:
        item = verdict.item
        if verdict.next_try is not None:
            self._trials[item.id] = item
            self._backlog.put_back(item, verdict.next_try)
            return
        self._outcomes[item.id] = error_outcome(item, failure, worker=job, at=time.time())
        self._counts = self._counts._replace(errors=self._counts.errors + 1)
        if self._counts.errors > self._error_limit:
            self.problem = f"more than {self._options.max_errors} items ended in an error (--max-errors)"

    def _take_back(self, peer: Peer) -> None:
        """Take the items back from a worker that is gone; those that it worked on are suspects."""
        running = list(peer.lease)[: self._options.capacity] if peer.is_ready and not peer.is_leaving else []
        suspects = running if peer.blamed is None else [peer.blamed]
        why = peer.ended_by or "its worker was killed while it worked on the item"
        for item in peer.lease.values():
            if item.id in suspects:
                self._apply(after_death(item), Failure("died", why), peer.job)
            else:
                self._backlog.put_back(item, NextTry.ALONE if item.deaths else NextTry.ANYWHERE)
        peer.lease.clear()
        self._crew.note_end(peer)

    # ---- what goes out ----

    def _give(self, peer: Peer) -> None:
        """Send a worker the items that it can take now."""
        if not peer.is_ready or peer.is_alone or peer.is_leaving or self.problem or self._returning:
            return
        backlog = self._backlog
        if backlog.has(NextTry.ALONE):
            item = None if peer.lease else backlog.take(NextTry.ALONE)
            self._send(peer, [item] if item else [], alone=True)
        elif backlog.has(NextTry.ANYWHERE):
            ahead = min(self._options.in_flight - 1, int(SHORT_S / max(peer.item_s, 1e-6)))
            wanted = max(0, self._options.capacity + ahead - len(peer.lease))
            items = (backlog.take() for _ in range(wanted))
            self._send(peer, [item for item in items if item is not None])
        elif not peer.lease:
            self._give_the_last(peer)

    def _give_the_last(self, peer: Peer) -> None:
        """Give an idle worker an item that wants its GPU for itself, or let it go when nothing is left for it."""
        if self._backlog.has(NextTry.OWN_GPU) and self._crew.is_only_one(peer, self._peers.all):
            item = self._backlog.take(NextTry.OWN_GPU)
            self._send(peer, [item] if item else [], alone=True)
        elif not self._lost and self._is_spare(peer):
            peer.is_leaving = True
            self._peers.send(peer, Leave())

    def _is_spare(self, peer: Peer) -> bool:
        """Return True if others do what is left, or wait for the GPU of this idle worker."""
        is_first = self._crew.is_first(peer, self._peers.all)
        return not is_first or any(other.lease for other in self._peers.all)

    def _send(self, peer: Peer, items: list[OpenItem], *, alone: bool = False) -> None:
        if not items:
            return
        if not peer.lease:
            peer.answered_at = time.monotonic()
        peer.is_alone = alone
        peer.lease.update((item.id, item) for item in items)
        self._peers.send(peer, Work([(item.id, item.value) for item in items]))

    def _end_late_items(self, now: float) -> None:
        """Kill the workers whose item runs longer than --item-timeout."""
        limit_s = self._options.item_timeout_s
        for peer in self._peers.all if limit_s else ():
            for item in list(peer.lease)[: self._options.capacity]:
                if now - peer.begun.setdefault(item, now) > limit_s and peer.blamed is None:
                    peer.blamed, peer.ended_by = item, f"ran longer than {format_duration(limit_s)} (--item-timeout)"
                    send_signal(peer.pid, signal.SIGKILL, peer.began)

    # ---- between ----

    def _commit(self) -> None:
        """Store what has come, and let the workers forget it. What finds no room is tried again."""
        if self._outcomes or self._trials:
            trials = [(item.failures, item.deaths, item.id) for item in self._trials.values()]
            try:
                self._store.record(list(self._outcomes.values()), trials)
            except TransientError as error:
                self._crew.report(str(error))
                return
            self._outcomes.clear()
            self._trials.clear()
        for peer in self._peers.all:
            if peer.answers > peer.stored:
                peer.stored = peer.answers
                self._peers.send(peer, Stored(peer.stored))

    def _look_around(self, now: float) -> None:
        """Add workers, and report how far it is."""
        if self._returning and now >= self._returning_until:
            self._returning.clear()
        while self._lost and now >= self._lost[0][0]:
            self._take_back(self._lost.popleft()[1])
        left = self._counts.open
        has_more = self._backlog.has(NextTry.ANYWHERE) or self._backlog.has(NextTry.ALONE)
        if left and not self._returning:
            self.problem = self.problem or self._crew.add_missing(self._peers.all, left if has_more else 1, now)
        self._progress(self._counts.total - left, self._counts.total)
        for peer in self._peers.all:
            self._give(peer)

    def _is_over(self) -> bool:
        is_busy = self._returning or self._lost or any(peer.lease for peer in self._peers.all)
        return bool(self.problem) or (not is_busy and self._backlog.is_empty)

    def _end(self) -> None:
        """Let all workers go, and wait until they are gone."""
        for peer in self._peers.all:
            peer.is_leaving = True
            self._peers.send(peer, Leave())
        self._crew.cancel_all_but(peer.job for peer in self._peers.all if peer.is_ready and not peer.lease)
        until = time.monotonic() + END_S
        while self._peers.all and time.monotonic() < until:
            for _ in self._peers.wait(COMMIT_S):
                pass
        self._crew.cancel_all_but(())
