"""The processes of Ray on one box: started, watched, ended by their pids, never by `ray stop`. Imports no Ray."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

from gpusched.cluster import boxes
from gpusched.cluster.boxes import BoxConfig
from gpusched.common import processes
from gpusched.common.files import read_json_object, write_atomically

OBJECT_STORE_BYTES = 80_000_000  # the least that Ray takes: no object of ours stays in it
LOST_HEAD_S = 20  # without the head for so long, Ray ends on a node, and is started again
END_S = 1.0  # from TERM to KILL: nothing of value is in these processes
_RESTART_S = (1.0, 2.0, 5.0, 10.0)  # before it is started again
_OF_RAY = {
    "RAY_AUTH_MODE": "token",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it would end our actors for the memory of others
    "RAY_raylet_liveness_self_check_interval_ms": "1000",  # it ends sooner once the head is another one
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(LOST_HEAD_S),
    "PYTHONUNBUFFERED": "1",
}


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that Ray goes by: for whatever leads to jobs."""
    return {name: value for name, value in environ.items() if not name.startswith("RAY_")}


def ray_environment(box: BoxConfig) -> dict[str, str]:
    return {**clean_environment(os.environ), **_OF_RAY, "RAY_AUTH_TOKEN_PATH": box.token}


def spawn(log: str, words: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start Python with these words in a session of its own, with all that it says in a log."""
    with open(log, "ab") as file:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


class RayProcesses:
    """`ray start --block` of this box, in a session of its own, and the program that makes our actor there."""

    def __init__(self, box: BoxConfig) -> None:
        self._box = box
        self._ray: subprocess.Popen[bytes] | None = None
        self._maker: subprocess.Popen[bytes] | None = None
        self._files = ""  # the directory of its session
        self._start_at_s = self._make_at_s = 0.0
        self._failures = 0

    def keep(self, *, has_actor: bool) -> None:
        """Start what is missing."""
        now_s = time.monotonic()
        if self._ray is not None and self._ray.poll() is not None:
            self.end()
            self._start_at_s = now_s + _RESTART_S[min(self._failures, len(_RESTART_S) - 1)]
            self._failures += 1
        if self._ray is None:
            if now_s >= self._start_at_s:
                self._start()
                self._make_at_s = now_s + 1.0
            return
        if self._maker is not None and self._maker.poll() is None:
            return
        if has_actor:
            self._failures = 0
            self._make_at_s = now_s + LOST_HEAD_S  # a restart is Ray's own business at first
        elif now_s >= self._make_at_s:
            self._make_at_s = now_s + 2.0
            words = ["-m", "gpusched.cluster.transport", self._box.cluster, self._box.node]
            self._maker = spawn(self._box.path("maker.log"), words, ray_environment(self._box))

    def _start(self) -> None:
        """Start Ray. Its sockets need a short path, so its files lie in a directory of /tmp, for this user alone."""
        box = self._box
        boxes.check_token(box.cluster)
        self._files = tempfile.mkdtemp(prefix="gs-", dir="/tmp")  # mode 0700
        port = box.address.rpartition(":")[2]
        where = ["--head", "--port", port, "--no-monitor", "--include-dashboard=false"]
        words = [
            "-m",
            "ray.scripts.scripts",
            "start",
            "--block",
            "--disable-usage-stats",
            "--include-log-monitor=false",
        ]
        words += where if box.is_head else ["--address", box.address]
        words += ["--node-ip-address", box.ip, "--num-cpus", "1", "--num-gpus", "0"]
        words += ["--object-store-memory", str(OBJECT_STORE_BYTES), "--temp-dir", self._files]
        words += ["--resources", json.dumps({box.resource: 1})]
        words += [f"--{name}={number}" for name, number in box.ports().items()]
        self._ray = spawn(box.path("ray.log"), words, ray_environment(box))
        begun = {"pid": self._ray.pid, "start": processes.process_start(self._ray.pid), "files": self._files}
        write_atomically(box.path("ray.json"), json.dumps(begun).encode())

    def end(self) -> None:
        """End all that was started here, or by a keeper before this one that was killed."""
        known = read_json_object(self._box.path("ray.json"))
        if isinstance(known.get("pid"), int) and isinstance(known.get("start"), int):
            end_session(known["pid"], known["start"])
            if str(known.get("files", "")).startswith("/tmp/gs-"):
                shutil.rmtree(known["files"], ignore_errors=True)
            os.unlink(self._box.path("ray.json"))
        for process in (self._maker, self._ray):
            if process is not None:
                if process.poll() is None:
                    process.kill()
                process.wait()
        self._ray = self._maker = None


def end_session(leader: int, start_ticks: int) -> None:
    """End the processes of a session that we have started: its leader first, which ends the others."""
    handles = {pid: processes.process_start(pid) for pid in processes.session_members(leader, start_ticks)}
    processes.send_signal(leader, signal.SIGTERM, start_ticks)
    until_s = time.monotonic() + END_S
    while any(_lives(pid, start) for pid, start in handles.items()) and time.monotonic() < until_s:
        time.sleep(0.1)
    for pid, start in handles.items():
        if start is not None:
            processes.send_signal(pid, signal.SIGKILL, start)


def _lives(pid: int, start: int | None) -> bool:
    return start is not None and processes.process_start(pid) == start
