"""The loop of a coordinator: gives items to the workers, takes their answers, adds workers while that pays.

One thread, one loop, one writer. What must not be forgotten is in the items' store; who has which item is only known
here, and ends with the connection of the worker. After a kill the workers tell the next coordinator what they have.
"""

from __future__ import annotations

import signal
import time
from collections import deque

from gpusched.common.processes import send_signal
from gpusched.common.quantities import format_duration
from gpusched.host.store.pool.items import OpenItem
from gpusched.pool.coordinator.crew import Crew
from gpusched.pool.coordinator.ledger import Ledger
from gpusched.pool.coordinator.peers import Peer, Peers
from gpusched.pool.coordinator.progress import PoolProgress
from gpusched.pool.coordinator.verdicts import NextTry
from gpusched.pool.messages import Acknowledged, Answers, Broken, Hello, Leave, Message, Ready, Work
from gpusched.pool.options import PoolOptions

COMMIT_S = 0.1
LOST_S = 0.3  # after the end of a worker: if the pool is being stopped, a signal comes here too, and nobody is blamed
BOOKED_S = 2.0  # after that: for the dispatcher to say how it ended
SHORT_S = 0.02  # items that take longer are not sent ahead: a round trip costs less than a hundredth of that
RETURN_S = 5.0  # for the workers of an earlier coordinator to say what they have
END_S = 30.0  # for workers to tear down


class Coordinator:
    """One run of a coordinator, from the first worker to the last outcome."""

    def __init__(self, options: PoolOptions, ledger: Ledger, peers: Peers, crew: Crew, progress: PoolProgress) -> None:
        self._options, self._ledger, self._peers, self._crew = options, ledger, peers, crew
        self._capacity = options.capacity
        self._backlog = ledger.backlog
        self._progress = progress
        self._commit_at = 0.0
        self._lost: deque[tuple[float, Peer]] = deque()  # workers that are gone, and when their items are taken back
        self._returning = crew.running_jobs()  # workers of an earlier coordinator, which may have items
        self._returning_until = time.monotonic() + RETURN_S
        self._has_room = True  # on the disk, for outcomes
        self._has_worked = False  # some worker has answered, so the program or the class can work
        self.is_stopped = False
        self._problem = ""

    @property
    def problem(self) -> str:
        """The reason to stop before the end; empty if there is none."""
        return self._problem or self._ledger.problem

    def run(self) -> None:
        """Work until every item has an outcome, or no more is possible."""
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

    def _stop(self, number: int, frame: object) -> None:
        """Stop at once: the workers get the same signal."""
        self.is_stopped = True
        self._problem = "it was stopped"

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
                is_load = message.stage == "load" or (message.stage == "first" and not self._has_worked)
                self._crew.note_broken(peer, message, is_load=is_load)
                peer.is_ready &= not is_load  # else no item is to blame
        self._give(peer)

    def _greet(self, peer: Peer, hello: Hello) -> None:
        """Take note of a worker, and of the items that it has from an earlier coordinator."""
        peer.job, peer.device, peer.is_ready = hello.job, hello.device, hello.is_ready
        self._returning.discard(peer.job)
        peer.lease.update((item, row) for item in hello.items if (row := self._ledger.find(item)) is not None)

    def _take_answers(self, peer: Peer, message: Answers) -> None:
        batch_size = peer.batch_size or self._capacity // self._options.threads
        self._ledger.out_of_memory += message.batch_size < batch_size
        peer.note(message, time.monotonic())
        self._has_worked = True
        if message.split_by:
            self._crew.note_split(peer, message.split_by)
        for answer in message.answers:
            item = peer.lease.pop(answer.item, None) or self._find_elsewhere(answer.item)
            if item is not None and answer.failure is None:
                self._ledger.note_result(item.id, answer.result)
            elif item is not None and answer.failure is not None:
                had_own_gpu = self._crew.is_only_one(peer, self._peers.all)
                self._ledger.note_failure(item, answer.failure, worker=peer.job, had_own_gpu=had_own_gpu)
        peer.is_alone &= bool(peer.lease)

    def _find_elsewhere(self, item: int) -> OpenItem | None:
        """Return an item that the worker was not known to have; None if it has an outcome already."""
        for other in (*self._peers.all, *(peer for _, peer in self._lost)):
            if (row := other.lease.pop(item, None)) is not None:
                return row
        return self._ledger.find(item)

    def _is_explained(self, due: float, peer: Peer, now: float) -> bool:
        """Return True if the end of a worker that is gone is known, or will not be soon."""
        is_known = peer.is_leaving or peer.ended_by or now >= due + BOOKED_S or self._crew.end_of(peer)
        return now >= due and bool(is_known)

    def _take_back(self, peer: Peer) -> None:
        """Take the items back from a worker that is gone; those that it worked on are suspects."""
        running = list(peer.lease)[: self._capacity] if peer.is_ready and not peer.is_leaving else []
        suspects = running if peer.late_item is None else [peer.late_item]
        why = peer.ended_by or f"its worker ended while it worked on the item: {self._crew.end_of(peer) or 'killed'}"
        for item in peer.lease.values():
            if item.id in suspects:
                self._ledger.suspect(item, why, worker=peer.job)
            else:
                self._ledger.put_back(item, behind_others=peer.has_failed_load and not peer.done)
        self._crew.note_end(peer)

    # ---- what goes out ----

    def _give(self, peer: Peer) -> None:
        """Send a worker the items that it can take now."""
        if not peer.is_ready or peer.is_alone or peer.is_leaving:
            return
        if self.problem or self._returning or not self._has_room:
            return
        if self._backlog.has(NextTry.ALONE):
            if not peer.lease:
                self._send(peer, NextTry.ALONE, 1)
        elif self._backlog.has(NextTry.ANYWHERE):
            ahead = min(self._options.in_flight - 1, int(SHORT_S / max(peer.item_s, 1e-6)))
            if len(peer.lease) < self._capacity + ahead / 2:  # several in one message
                self._send(peer, NextTry.ANYWHERE, self._capacity + ahead - len(peer.lease))
        elif not peer.lease:
            if self._backlog.has(NextTry.OWN_GPU) and self._crew.is_only_one(peer, self._peers.all):
                self._send(peer, NextTry.OWN_GPU, 1)
            elif not self._lost and self._is_spare(peer):
                peer.is_leaving = True
                self._peers.send(peer, Leave())

    def _is_spare(self, peer: Peer) -> bool:
        """Return True if others do what is left, or wait for the GPU of this idle worker."""
        is_first = self._crew.is_first(peer, self._peers.all)
        return not is_first or any(other.lease for other in self._peers.all)

    def _send(self, peer: Peer, place: NextTry, count: int) -> None:
        """Send up to so many items, which are the worker's from now on."""
        items = [item for _ in range(count) if (item := self._backlog.take(place)) is not None]
        if items:
            self._ledger.note_begin()
            if not peer.lease:
                peer.idle_until = time.monotonic()
            peer.is_alone = place is not NextTry.ANYWHERE
            peer.lease.update((item.id, item) for item in items)
            self._peers.send(peer, Work([(item.id, item.value) for item in items]))

    def _end_late_items(self, now: float) -> None:
        """Kill the workers whose item runs longer than --item-timeout."""
        limit_s = self._options.item_timeout_s
        for peer in self._peers.all if limit_s else ():
            for item in list(peer.lease)[: self._capacity]:
                if now - peer.begun.setdefault(item, now) > limit_s and peer.late_item is None:
                    peer.late_item, peer.ended_by = item, f"ran longer than {format_duration(limit_s)} (--item-timeout)"
                    send_signal(peer.pid, signal.SIGKILL, peer.began)

    # ---- between ----

    def _commit(self) -> None:
        """Store what has come, and let the workers forget it. What finds no room is tried again."""
        self._has_room = self._ledger.commit()
        if self._has_room:
            for peer in self._peers.all:
                if peer.answers > peer.stored:
                    peer.stored = peer.answers
                    self._peers.send(peer, Acknowledged(peer.stored))

    def _look_around(self, now: float) -> None:
        """Take items back, add workers, give out what waits, and report how far it is."""
        while self._lost and self._is_explained(*self._lost[0], now):
            self._take_back(self._lost.popleft()[1])
        if now >= self._returning_until:
            self._returning.clear()
        left = self._ledger.left
        if left and not self._returning and not self.problem:
            has_more = self._backlog.has(NextTry.ANYWHERE) or self._backlog.has(NextTry.ALONE)
            self._problem = self._crew.add_missing(self._peers.all, left if has_more else 1, now)
            if not has_more and self._peers.all:
                self._crew.cancel_waiting()
        self._progress(self._ledger, self._peers.all)
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
        self._crew.cancel_all_but({peer.job for peer in self._peers.all if peer.is_ready and not peer.lease})
        until = time.monotonic() + END_S
        while self._peers.all and time.monotonic() < until:
            for _ in self._peers.wait(COMMIT_S):
                pass
        self._crew.cancel_all()
