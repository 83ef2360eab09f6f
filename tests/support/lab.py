"""A cluster of real processes on loopback: a head without GPUs and nodes with simulated ones, started by the verbs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from gpusched.cluster.membership import own_ip
from gpusched.host.store import Store, attempt_table, job_table
from gpusched.host.store.cluster import lease_table
from tests.support.box import GPUSCHED, Box, Ended, Row, Running, command_of, wait_for
from tests.support.network import Network

NAME = "lab"
MOST_NODES = 3
RAY_AND_OURS = ("/ray/", "ray::", "ray.scripts", "gpusched.cluster")  # what a partition of a node stops


class Line(NamedTuple):
    """What a job has written into the log of all jobs: its name; begin, term, end or overlap; and when."""

    attempt: str  # 12.1: job and attempt
    job: str
    what: str
    at: float


class Lab:
    """The head and its nodes share a home, as on a shared file system; each is a box of its own otherwise.

    With a network, each node has an address and a cable of its own.
    """

    def __init__(
        self,
        root: Path,
        *nodes: str,
        gpus: str = "4",
        lease: str = "60",
        grace: str = "1",
        network: Network | None = None,
    ) -> None:
        self.root = root
        self.home = root / "home"
        self.home.mkdir()
        self.terms = ["--lease", lease, "--grace", grace, "--margin", "1"]
        self.network = network
        self.ip = own_ip() if network is None else network.ip
        self._ports = free_ports(1 + MOST_NODES)
        self.port = self._ports[0]
        self.head = self._box("head", "")
        self.nodes: dict[str, Box] = {}
        for name in nodes:
            self.add_node(name, gpus)
        hosts = f"name: {NAME}\nip: {self.ip}\nport: {self._ports[0]}\nhosts: []\n"
        hosts += f"lease: {lease}\ngrace: {grace}\nmargin: 1\n"
        (root / "hosts.yaml").write_text(hosts)

    def _box(self, name: str, gpus: str, **environment: str) -> Box:
        home = {"HOME": str(self.home), "GPUSCHED_POLL_INTERVAL": "0.5"}
        return Box(self.root / name, gpus, {**home, **environment})

    def add_node(self, name: str, gpus: str = "4", **environment: str) -> Box:
        """Make a box that may join."""
        self.nodes[name] = self._box(name, gpus, **environment)
        return self.nodes[name]

    def up(self) -> Ended:
        return self.head.start("cluster", "up", str(self.root / "hosts.yaml")).wait(150)

    def begin_join(self, name: str, *more: str, within: Sequence[str] = ()) -> Running:
        """Start `cluster join` on a box, by the words `within` before it."""
        port = self._ports[1 + list(self.nodes).index(name)]
        words = ["cluster", "join", f"{self.ip}:{self._ports[0]}", "--name", NAME, "--node", name]
        ip, program = self.ip, [*within, *GPUSCHED]
        if self.network is not None:
            ip, program = self.network.ip_of(name), [*self.network.program(name), *program]
        return self.nodes[name].spawn(*words, "--ip", ip, "--port", str(port), *self.terms, *more, program=program)

    def start(self) -> None:
        """Start the head and all nodes."""
        up = self.up()
        assert up.code == 0, up.text
        joins = [self.begin_join(name) for name in self.nodes]
        for each in joins:
            ended = each.wait(120)
            assert ended.code == 0, ended.text

    # ---- jobs ----

    def job(self, name: str, seconds: float = 1.0, code: int = 0) -> str:
        """Return a command that writes down when it begins, when it is told to end, and when it has come to its end.

        It writes `overlap` if anything of an earlier attempt still runs.
        """
        log = self.root / "jobs.log"
        said = f"echo $GPUSCHED_CLUSTER_JOB {name} %s $(date +%%s.%%N) >> {log}"
        steps = [f"exec 9>>{self.root}/lock.{name}", f"flock -n 9 || {said % 'overlap'}"]
        steps += [f"trap '{said % 'term'}; exit 9' TERM", said % "begin", f"sleep {seconds} & wait $!", said % "end"]
        return "; ".join([*steps, f"exit {code}"])

    def submit(self, *commands: str, options: str = "") -> list[int]:
        (self.head.work / "list.txt").write_text("".join(f"{command}\n" for command in commands))
        ended = self.head.gpusched("submit", "-q", NAME, *options.split(), "list.txt")
        assert ended.code == 0, ended.text
        return [int(word) for word in ended.out.split()]

    def lines(self) -> list[Line]:
        path = self.root / "jobs.log"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Line(attempt, name, what, float(at)) for attempt, name, what, at in rows]

    def lines_of(self, job: str) -> dict[str, Line]:
        """Return what a job has written, by attempt and word: `1 begin`."""
        mine = [line for line in self.lines() if line.job == job]
        return {f"{line.attempt.rpartition('.')[2]} {line.what}": line for line in mine}

    def count(self, what: str) -> int:
        return sum(line.what == what for line in self.lines())

    def queue(self, node: str = "") -> Path:
        name = f"{NAME}.{node}" if node else NAME
        return self.home / ".local/state/gpusched/on" / os.uname().nodename / name

    def rows(self, ids: list[int]) -> list[Row]:
        with Store(str(self.queue() / "queue.db"), read_only=True) as store:
            return [Row(job_table.get(store, each), attempt_table.attempts(store, each), None) for each in ids]

    def node_of(self, job_id: int) -> str:
        """Return the node that has or had the newest attempt of a job; empty if none ever had."""
        with Store(str(self.queue() / "queue.db"), read_only=True) as store:
            leases = lease_table.of_job(store, job_id)
            return leases[max(leases)].node if leases else ""

    def wait(self, ids: list[int], timeout_s: float = 90.0) -> list[Row]:
        """Wait until these jobs have ended, and return them."""

        def ended() -> bool:
            return all(row.state in ("succeeded", "failed", "cancelled") for row in self.rows(ids))

        try:
            wait_for(ended, "the end of all jobs", timeout_s)
        except AssertionError:
            states = [(row.job.id, row.state, row.outcome, row.note) for row in self.rows(ids)]
            raise AssertionError(f"not all have ended: {states}\n{self.words()}") from None
        return self.rows(ids)

    def words(self) -> str:
        """What the processes of the cluster have logged."""
        paths = sorted((self.home / ".local/state/gpusched/clusters").glob("**/*.log"))
        return "\n".join(f"--- {path.parent.name}/{path.name}\n{path.read_text()[-1500:]}" for path in paths)

    def log(self, box: str, name: str) -> str:
        path = self.home / ".local/state/gpusched/clusters" / os.uname().nodename / NAME / box / name
        return path.read_text() if path.exists() else ""

    # ---- breaking ----

    def pids(self, box: Box, *words: str) -> list[int]:
        """The processes of a box whose command line has one of these words."""
        return [pid for pid in box.processes() if any(word in command_of(pid) for word in words)]

    def kill(self, box: Box, *words: str, number: int = signal.SIGKILL) -> int:
        pids = self.pids(box, *words)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(pids)

    def cut_off(self, name: str, way: str) -> None:
        """Part a node from the head: pull its cable, or stop (`freeze`) its Ray, its agent and its keeper."""
        self._set_link(name, way, is_up=False)

    def join_again(self, name: str, way: str) -> None:
        """End what `cut_off` has begun."""
        self._set_link(name, way, is_up=True)

    def _set_link(self, name: str, way: str, *, is_up: bool) -> None:
        if way == "cable":
            assert self.network is not None
            change = self.network.mend if is_up else self.network.cut
            change(name)
        else:
            number = signal.SIGCONT if is_up else signal.SIGSTOP
            self.kill(self.nodes[name], *RAY_AND_OURS, number=number)

    def power_cut(self, name: str) -> None:
        """End all processes of a node at once."""
        box = self.nodes[name]
        wait_for(lambda: not self.kill(box, ""), f"the end of all on {name}", 20)

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for box in (*self.nodes.values(), self.head):
            box.__exit__(kind, error, trace)
        for path in Path("/tmp").glob("gs-*"):
            if not any(str(path) in command_of(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()):
                with contextlib.suppress(OSError):
                    _remove_tree(path)


def _remove_tree(path: Path) -> None:
    import shutil

    if path.stat().st_uid == os.getuid():
        shutil.rmtree(path, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Return the first ports of some ranges of 40 that are free now."""
    found: list[int] = []
    first = 20000 + os.getpid() % 300 * 100
    while len(found) < count:
        if all(_is_free(port) for port in range(first, first + 8)):
            found.append(first)
        first += 40
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True
