"""The process that stays on each box of a cluster: it keeps Ray, our actor and the node's dispatcher at work.

It starts the dispatcher itself, since what Ray starts is nice, is the first to be ended for memory, and has variables
of Ray's. `python -m gpusched.cluster.keeper CLUSTER NODE` is what `cluster up` and `cluster join` leave behind.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from typing import Any

from gpusched.cluster import boxes
from gpusched.cluster.boxes import BoxConfig
from gpusched.cluster.ray_processes import RayProcesses, clean_environment, spawn
from gpusched.cluster.serving import log_into
from gpusched.common.errors import GpuschedError
from gpusched.common.files import read_json_object
from gpusched.host import locks
from gpusched.host.queue import published
from gpusched.host.store import Store
from gpusched.host.store.cluster import lease_table, leased_table
from gpusched.operations.change import requests
from gpusched.operations.run.background import start_detached

log = logging.getLogger("gpusched.cluster")

STEP_S = 0.5
STAY = 10 * 365 * 86400  # seconds: the dispatcher of a node does not leave for want of jobs
LAST_WORD_S = 2.0  # after the last word to the nodes, before the head ends
LONELY_S = 10.0  # a node that leaves waits so long for a head that is not heard


class Keeper:
    def __init__(self, box: BoxConfig) -> None:
        self._box = box
        self._ray = RayProcesses(box)
        self._leaves = ""  # drain | now
        self._since_s = 0.0  # it leaves
        self._terminated = False
        self._trouble = ""  # of the newest step

    def run(self) -> None:
        """Stay until the box has left the cluster."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._ray.end()  # that of a keeper that was killed
        log.info("the keeper of %s begins, pid %s", self._box.node, os.getpid())
        try:
            while not (self._terminated or self._step()):
                time.sleep(STEP_S)
        finally:
            self._ray.end()
        if not self._terminated:
            self._leave()
        log.info("the keeper of %s ends", self._box.node)

    def _step(self) -> bool:
        """Start what is missing; return True when the box has left. Trouble, such as a full disk, passes."""
        try:
            if self._is_over():
                return True
            if not self._box.is_head:
                self._keep_dispatcher()
            self._ray.keep(has_actor=self._has_actor())
            self._trouble = ""
        except (OSError, GpuschedError) as error:
            if str(error) != self._trouble:
                log.warning("tried again: %s", error)
            self._trouble = str(error)
        return False

    def _on_signal(self, *_: object) -> None:
        self._terminated = True  # the dispatcher and its jobs go on

    def _has_actor(self) -> bool:
        box = self._box
        return box.queue.dispatcher() is not None if box.is_head else locks.is_held(box.path("agent.lock"))

    def _keep_dispatcher(self) -> None:
        """Start the dispatcher where it is missing: not before Ray has let this box in, unless it has jobs."""
        queue = self._box.queue
        if self._leaves != "now" and queue.dispatcher() is None and (self._has_actor() or self._has_jobs()):
            start_detached(queue, log.info, dispatcher_settings(self._box), clean_environment(os.environ))

    def _has_jobs(self) -> bool:
        with Store(self._box.queue.database) as store:
            return bool(leased_table.leased_jobs(store))

    # ---- leaving ----

    def _is_over(self) -> bool:
        """Return True when the box has left: nothing of the cluster runs here, and the head knows."""
        status = read_json_object(self._box.path("status.json"))
        how = boxes.leaving(self._box) or ("" if self._box.is_head else str(status.get("leave", "")))
        if how and how != self._leaves:
            self._leaves, self._since_s = how, time.monotonic()
            if how == "now" and not self._box.is_head:
                requests.stop(self._box.queue, at_once=True)
        if not self._leaves or time.monotonic() - self._since_s < LAST_WORD_S:
            return False
        return self._is_head_over() if self._box.is_head else self._is_node_over(status)

    def _is_node_over(self, status: dict[str, Any]) -> bool:
        silent_s = time.time() - float(status.get("heard_at", 0.0))
        is_lonely = silent_s > LONELY_S and time.monotonic() - self._since_s > LONELY_S
        return not self._has_jobs() or (self._leaves == "now" and is_lonely and self._box.queue.dispatcher() is None)

    def _is_head_over(self) -> bool:
        view = published.read_cluster(self._box.queue)
        with Store(self._box.queue.database) as store:
            if lease_table.open_leases(store):
                return False
        silent = time.time() - LONELY_S
        return view is None or all(node.is_warned or node.heard_at < silent for node in view.nodes)

    def _leave(self) -> None:
        """Take away what makes this box a part of the cluster; its queue stays, with the logs."""
        if not self._box.is_head:
            requests.stop(self._box.queue)
        for name in ("leaving", "status.json", "config.json"):
            if os.path.exists(self._box.path(name)):
                os.unlink(self._box.path(name))


def dispatcher_settings(box: BoxConfig) -> dict[str, object]:
    """Return the settings of a node's dispatcher: what its box states, and what the head decides."""
    fixed = {"idle_exit": float(STAY), "grace": box.terms.grace_s, "max_quick_fails": 0}
    return {**box.settings, **fixed}


def start_keeper(box: BoxConfig) -> int:
    """Start the keeper of this box in the background; return its pid. It has this shell's variables but Ray's."""
    words = ["-m", "gpusched.cluster.keeper", box.cluster, box.node]
    process = spawn(box.path("keeper.log"), words, clean_environment(os.environ))
    process.returncode = 0  # it outlives us by design
    return process.pid


def main(cluster: str, node: str) -> None:
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # whoever started it may ignore them, and jobs must not
    box = boxes.read(cluster, node)
    if box is None:
        raise SystemExit(f"{node} of {cluster} is not configured here")
    lock = locks.take_file(box.path("keeper.lock"), 0o600)
    if lock is None:
        return  # another one is at work
    log_into(box.path("keeper.log"))
    try:
        Keeper(box).run()
    except GpuschedError as error:
        log.error("%s", error)
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(*sys.argv[1:3])
