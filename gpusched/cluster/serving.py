"""The loops in which a head and an agent live, whatever carries their messages."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpusched.cluster import boxes
from gpusched.cluster.agent import Agent, NodePlace
from gpusched.cluster.boxes import BoxConfig
from gpusched.cluster.head import Head
from gpusched.cluster.messages import Reply, Request
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.files import write_atomically
from gpusched.host import locks
from gpusched.host.queue import published

log = logging.getLogger("gpusched.cluster")

NEWS_S = 0.05  # between two looks at the queue of a node
FIRST_RETRY_S, LAST_RETRY_S = 0.5, 5.0  # after a call that has failed
LOCK_WAIT_S = 30.0
PUBLISH_S = 0.5


def log_into(path: str) -> None:
    """Have this process write its log into a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.setLevel("INFO")
    log.propagate = False
    log.handlers[:] = [handler]


def take_lock(take: Callable[[], int | None], what: str) -> int:
    """Take a lock that a process which is being killed may still have. Raises GpuschedError."""
    until_s = time.monotonic() + LOCK_WAIT_S
    while (lock := take()) is None:
        if time.monotonic() >= until_s:
            raise GpuschedError(f"another {what} is at work", exit_code=EXIT_CANNOT_WORK)
        time.sleep(0.1)
    return lock


class HeadServer:
    """The head at work: it holds the lock of the queue, answers agents, and publishes what it knows."""

    def __init__(self, box: BoxConfig) -> None:
        log_into(box.path("head.log"))
        self._box = box
        self._lock = take_lock(box.queue.take, "head")
        self._head = Head(box.queue, box.terms)
        self._publish_at_s = 0.0
        log.info("the head of %s begins, pid %s", box.cluster, os.getpid())
        self._publish()

    def exchange(self, request: Request) -> Reply:
        how = boxes.leaving(self._box)
        reply = self._head.exchange(request, leave=how)
        self._publish()
        return reply

    def look(self) -> None:
        """End the leases that have run out."""
        self._head.expire()
        self._publish()

    def _publish(self) -> None:
        if time.monotonic() >= self._publish_at_s:
            self._publish_at_s = time.monotonic() + PUBLISH_S
            with suppress(OSError):  # a full disk: the nodes must still be answered
                published.write(self._box.queue.cluster, self._head.view())


def serve_node(box: BoxConfig, exchange: Callable[[Request], Reply]) -> None:
    """Keep the queue of a node in step with the head for ever. Raises GpuschedError if another agent does so.

    What the keeper of the box must know lies in status.json: when the head was heard last, why it is not or refuses
    this node, and if it wants that the node leaves.
    """
    log_into(box.path("agent.log"))
    lock = take_lock(lambda: locks.take_file(box.path("agent.lock"), 0o600), "agent of this node")
    place = NodePlace(box.node, box.queue, frozenset(box.tags))
    agent = Agent(place, box.terms, closed=lambda: box.closed(time.time()))
    status: dict[str, Any] = {"heard_at": 0.0, "problem": "", "refused": "", "leave": ""}
    log.info("the agent of %s begins, pid %s, lock %s", box.node, os.getpid(), lock)
    retry_s = FIRST_RETRY_S
    while True:
        version = agent.version_of_queue()
        try:
            request = agent.request()
            reply = exchange(request)
            agent.apply(request, reply)
            pause_s, retry_s = reply.pause_s, FIRST_RETRY_S
            status |= {"heard_at": time.time(), "problem": "", "refused": reply.refused, "leave": reply.leave}
        except Exception as error:  # of the transport, a full disk, a busy database: the next call makes it good
            pause_s, retry_s = retry_s, min(LAST_RETRY_S, 2 * retry_s)
            problem = f"{type(error).__name__}: {error}".split("\n")[0][:300]
            if problem != status["problem"]:
                log.warning("no exchange with the head: %s", problem)
            status["problem"] = problem
        with suppress(OSError):  # a full disk
            write_atomically(box.path("status.json"), json.dumps(status).encode())
        _wait(agent, version, pause_s, is_calm=not status["problem"])


def _wait(agent: Agent, version: int, pause_s: float, *, is_calm: bool) -> None:
    """Wait for so long, but no longer than until something happens on the node."""
    until_s = time.monotonic() + pause_s
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(NEWS_S, left_s))
        if is_calm and agent.version_of_queue() != version:
            return
