"""Ray as the carrier of messages: the actors of a head and of an agent. The only module that imports Ray.

`python -m gpusched.cluster.transport CLUSTER NODE` makes the actor of this box, unless it is there, and leaves.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

import ray

from gpusched.cluster import boxes, serving
from gpusched.cluster.boxes import HEAD, BoxConfig
from gpusched.cluster.messages import Reply, Request

CALL_S = 10.0  # a call that takes longer, or so much of a lease, is given up; the next one says all again
CALL_OF_LEASE = 1 / 15
MADE_S = 120.0
LOOK_S = 2.0  # between two looks of the head at its leases


class HeadActor:
    def __init__(self, cluster: str) -> None:
        self._server = serving.HeadServer(_box(cluster, HEAD))
        itself = ray.get_runtime_context().current_actor
        threading.Thread(target=_remind, args=(itself,), daemon=True).start()

    def look(self) -> None:
        self._server.look()

    def ping(self) -> bool:
        return True

    def exchange(self, request: Request) -> Reply:
        return self._server.exchange(request)


def _remind(head: Any) -> None:
    """Have the head look again and again, in its own thread: also while no node speaks, leases run out."""
    while True:
        time.sleep(LOOK_S)
        ray.wait([head.look.remote()])  # what it raises comes again with the next message


class AgentActor:
    def __init__(self, cluster: str, node: str) -> None:
        box = _box(cluster, node)
        self._line = _Line(box)
        self._thread = threading.Thread(target=serving.serve_node, args=(box, self._line.exchange), daemon=True)
        self._thread.start()

    def ping(self) -> bool:
        """Return True if it works; a killed thread must not pass for an agent."""
        return self._thread.is_alive()


class _Line:
    """The line to the head, found by its name, anew after each failure."""

    def __init__(self, box: BoxConfig) -> None:
        self._cluster = box.cluster
        self._call_s = max(CALL_S, box.terms.lease_s * CALL_OF_LEASE)
        self._head: Any = None

    def exchange(self, request: Request) -> Reply:
        try:
            if self._head is None:
                self._head = ray.get_actor(HEAD, namespace=self._cluster)
            reply = ray.get(self._head.exchange.remote(request), timeout=self._call_s)
            assert isinstance(reply, Reply)
            return reply
        except BaseException:
            self._head = None
            raise


def _box(cluster: str, node: str) -> BoxConfig:
    box = boxes.read(cluster, node)
    assert box is not None, f"{node} of {cluster} is not configured here"
    return box


def make_actor(box: BoxConfig) -> None:
    """Make the actor of this box if it is not there, and wait until it works."""
    ray.init(address=box.address, namespace=box.cluster, log_to_driver=False, logging_level=logging.WARNING)
    options: dict[str, Any] = {
        "name": box.node if box.is_head else f"agent-{box.node}",
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "resources": {box.resource: 0.001},
        "max_restarts": -1,
        "max_task_retries": 0,
    }
    kind, arguments = (HeadActor, (box.cluster,)) if box.is_head else (AgentActor, (box.cluster, box.node))
    actor: Any = ray.remote(kind).options(**options).remote(*arguments)
    if not ray.get(actor.ping.remote(), timeout=MADE_S):
        ray.kill(actor, no_restart=False)


if __name__ == "__main__":
    make_actor(_box(*sys.argv[1:3]))
