"""The nodes of a cluster as they are known here: where a job is, why others wait, and the logs that lie there."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.core.model import AttemptRow, DeviceUse
from gpusched.core.plan.board import ClusterView, device_document
from gpusched.host.queue import published
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store, meta_table
from gpusched.host.store.cluster import lease_table
from gpusched.host.store.cluster.lease_table import LeaseRow

ASK_AGAIN_S = 3.0
FETCH_S = 10.0  # so long is waited for a log that does not come


def read_cluster(queue_dir: QueueDir, store: Store) -> ClusterView | None:
    """Return the cluster of a queue as its head published it; None for a queue of this box."""
    return published.read_cluster(queue_dir) if meta_table.cluster_of(store) else None


def lease_text(store: Store, job_id: int, attempt: int) -> str:
    """Return on which node an attempt is, after "it"; empty for one of this box."""
    lease = lease_table.of_job(store, job_id).get(attempt)
    if lease is None:
        return ""
    return f"is on node {lease.node}" if lease.is_started else f"waits on node {lease.node} for its GPU"


def with_nodes(store: Store, attempts: list[AttemptRow]) -> list[AttemptRow]:
    """Return the attempts of a job, the nodes of a cluster named with their devices."""
    leases = lease_table.of_job(store, attempts[0].job_id) if attempts else {}
    return [
        replace(row, devices=tuple(_of_node(device, leases[row.number].node) for device in row.devices))
        if row.number in leases
        else row
        for row in attempts
    ]


def _of_node(device: DeviceUse, node: str) -> DeviceUse:
    return replace(device, name=f"{device.name} of node {node}")


class NodeLog:
    """The log of an attempt that a node of a cluster has: it is copied here as long as somebody asks."""

    def __init__(self, queue_dir: QueueDir, store: Store, job_id: int, attempt: int) -> None:
        self._queue_dir, self._store = queue_dir, store
        self._key = job_id, attempt
        self._ask_at_s = 0.0
        self._give_up_s = time.monotonic() + FETCH_S

    def _lease(self) -> LeaseRow | None:
        return lease_table.of_job(self._store, self._key[0]).get(self._key[1])

    def exists(self) -> bool:
        """Return True if the attempt is one of a node."""
        return self._lease() is not None

    def ask(self) -> None:
        """Have the head fetch what is new."""
        now_s = time.monotonic()
        if now_s >= self._ask_at_s and (lease := self._lease()) is not None:
            self._ask_at_s = now_s + ASK_AGAIN_S
            with Store(self._queue_dir.database) as store:
                lease_table.change(store, lease.token, log_wanted_at=time.time())

    def is_whole(self, path: str) -> bool:
        """Return True if all that the node has reported of the log is here, or if it does not come."""
        lease = self._lease()
        if lease is None or time.monotonic() >= self._give_up_s:
            return True
        try:
            return os.stat(path).st_size >= lease.log_bytes
        except OSError:
            return not lease.log_bytes


def node_devices(queue_dir: QueueDir) -> list[dict[str, Any]]:
    """Return the nodes of a cluster with their GPUs, for programs. Raises GpuschedError for a queue of this box."""
    view = published.read_cluster(queue_dir)
    if view is None:
        raise GpuschedError(f"{queue_dir.name} is no cluster", hint="`gpusched devices` shows the GPUs of this box")
    return [
        {
            "node": node.name,
            "heard_at": node.heard_at,
            "closed": node.closed,
            "devices": [device_document(item, node.board) for item in node.board.devices] if node.board else [],
        }
        for node in view.nodes
    ]
