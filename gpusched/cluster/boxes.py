"""A box in a cluster: its configuration, its files, its ports. Starts nothing."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from gpusched.cluster.leases import LeaseTerms
from gpusched.cluster.messages import LEAVES
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.files import read_json_object, user_dir, write_atomically
from gpusched.host.queue import queue_dirs
from gpusched.host.queue.queue_dirs import QueueDir

HEAD = "head"  # the name of its box; no node has it
PORT = 7700
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,60}")
_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")
_PORTS = (  # beyond the first one, which is that of the head
    *("node-manager-port", "object-manager-port", "runtime-env-agent-port"),
    *("dashboard-agent-grpc-port", "dashboard-agent-listen-port", "metrics-export-port"),
)
_WORKER_PORTS = range(10, 30)  # beyond the first port
_PORTS_OF_A_BOX = 40


@dataclass(frozen=True, slots=True)
class BoxConfig:
    """One box of a cluster: its head, or a node."""

    cluster: str
    node: str  # HEAD, or the name of the node
    address: str  # of the head: HOST:PORT
    ip: str  # of this box, as the others reach it
    port: int = PORT  # the first of its own
    terms: LeaseTerms = LeaseTerms()  # noqa: RUF009 (frozen)
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the dispatcher of the node
    tags: tuple[str, ...] = ()
    hours: str = ""  # in which the node takes jobs, as 20:00-08:00

    @property
    def is_head(self) -> bool:
        return self.node == HEAD

    @property
    def queue(self) -> QueueDir:
        """The queue of the cluster; of a node, its own one."""
        name = self.cluster if self.is_head else f"{self.cluster}.{self.node}"
        return queue_dirs.locate(queue_dirs.standing_path(name))

    @property
    def directory(self) -> str:
        return directory_of(self.cluster, self.node)

    @property
    def token(self) -> str:
        return token_path(self.cluster)

    @property
    def resource(self) -> str:
        """The resource of Ray's that pins our actor to this box."""
        return f"gpusched-{self.node}"

    def path(self, name: str) -> str:
        """Return the path of a file of this box: keeper.log, ray.log, status.json, leaving …"""
        return f"{self.directory}/{name}"

    def ports(self) -> dict[str, int]:
        """Return the ports by the options of `ray start`."""
        own = {name: self.port + n for n, name in enumerate(_PORTS, 1)}
        first, *_, last = _WORKER_PORTS
        return {**own, "min-worker-port": self.port + first, "max-worker-port": self.port + last}

    def refuse_busy_ports(self) -> None:
        """Raise GpuschedError if a port of this box is in use, perhaps by the cluster of somebody else."""
        first = [self.port] if self.is_head else []
        for port in [*first, *(number for name, number in self.ports().items() if "worker" not in name)]:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("", port))
                except OSError as error:
                    problem = f"port {port} cannot be had here: {error.strerror}"
                    way = "`port:` in HOSTS.yaml" + ("" if self.is_head else ", or `cluster join --port`,")
                    hint = f"{way} names the first of {_PORTS_OF_A_BOX} others, such as {self.port + 1000}"
                    raise GpuschedError(problem, hint=hint, exit_code=EXIT_CANNOT_WORK) from None

    def closed(self, now: float) -> str:
        """Return why the node takes no more jobs by its own word; empty if it does."""
        if leaving(self):
            return LEAVES
        return "" if is_within(self.hours, now) else f"it takes jobs from {self.hours.replace('-', ' to ')} only"


def check_name(name: str, where: str) -> str:
    """Return the name of a cluster or a node. Raises GpuschedError for one that cannot be a part of a file's name."""
    if not NAME.fullmatch(name) or (name == HEAD and where != "name"):
        raise GpuschedError(f"{name!r} is no name", where=where, hint="letters, digits and . _ -, and not `head`")
    return name


def check_hours(hours: str) -> str:
    if hours and not _HOURS.fullmatch(hours):
        raise GpuschedError(f"{hours!r} are no hours", where="hours", hint="from and to, as 20:00-08:00")
    return hours


def is_within(hours: str, now: float) -> bool:
    """Return True if a moment lies in these hours of the day, which may go past midnight; in none: always."""
    match = _HOURS.fullmatch(hours)
    if match is None:
        return True
    first, last = (int(match[n]) * 60 + int(match[n + 1]) for n in (1, 3))
    at = datetime.fromtimestamp(now)
    minute = at.hour * 60 + at.minute
    return first <= minute < last if first <= last else minute >= first or minute < last


def first_port(cluster: str, node: str) -> int:
    """Return the first port of a node: that of its last time, else one behind those of the others on this box."""
    known = all_here(cluster)
    own = [box.port for box in known if box.node == node]
    return own[0] if own else max((box.port + _PORTS_OF_A_BOX for box in known), default=PORT)


# ---- files -----------------------------------------------------------------------------------------


def _root() -> str:
    state = user_dir("XDG_STATE_HOME", ".local/state")
    if not state:
        raise GpuschedError("there is no home directory for the files of a cluster", hint="set HOME or XDG_STATE_HOME")
    return f"{state}/clusters"


def directory_of(cluster: str, node: str) -> str:
    return f"{_root()}/{os.uname().nodename}/{cluster}/{node}"


def token_path(cluster: str) -> str:
    """Return the path of the token: one for all boxes that share a home."""
    return f"{_root()}/{cluster}.token"


def only_cluster() -> str:
    """Return the cluster whose token lies here. Raises GpuschedError if that is not a single one."""
    names = [name.removesuffix(".token") for name in os.listdir(_root())] if os.path.isdir(_root()) else []
    names = [name for name in names if os.path.exists(token_path(name))]
    if len(names) != 1:
        raise GpuschedError(f"there are tokens of {len(names)} clusters here", where=_root(), hint="name one: --name")
    return names[0]


def make_token(cluster: str, text: str = "") -> None:
    """Write the token of a cluster, a new one unless it is stated."""
    os.makedirs(_root(), 0o700, exist_ok=True)
    write_atomically(token_path(cluster), (text or secrets.token_hex(32)).encode(), mode=0o600)


def check_token(cluster: str) -> None:
    """Raise GpuschedError for a token that is missing, or that others may read."""
    path = token_path(cluster)
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        hint = "copy it from the head (mode 0600), or give it to `cluster join --token-file`"
        raise GpuschedError("there is no token of this cluster here", where=path, hint=hint) from None
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or not status.st_size:
        problem = "the token is empty, or others may read it"
        raise GpuschedError(problem, where=path, hint=f"chmod 600 {path}", exit_code=EXIT_CANNOT_WORK)


def write(box: BoxConfig) -> None:
    os.makedirs(box.directory, 0o700, exist_ok=True)
    write_atomically(box.path("config.json"), json.dumps(asdict(box)).encode())


def read(cluster: str, node: str) -> BoxConfig | None:
    """Return what this box is in a cluster under this name; None if nothing."""
    values = read_json_object(f"{directory_of(cluster, node)}/config.json")
    if not values:
        return None
    return BoxConfig(**{**values, "terms": LeaseTerms(*values["terms"]), "tags": tuple(values["tags"])})


def all_here(cluster: str | None = None) -> list[BoxConfig]:
    """Return all that this box is, in one cluster or in every one."""
    root = f"{_root()}/{os.uname().nodename}"
    clusters = [cluster] if cluster else sorted(os.listdir(root)) if os.path.isdir(root) else []
    found = []
    for name in clusters:
        nodes = sorted(os.listdir(f"{root}/{name}")) if os.path.isdir(f"{root}/{name}") else []
        found += [box for node in nodes if (box := read(name, node)) is not None]
    return found


def leaving(box: BoxConfig) -> str:
    """Return how the box is to leave: drain, now; empty if it stays."""
    try:
        with open(box.path("leaving"), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def set_leaving(box: BoxConfig, how: str) -> None:
    write_atomically(box.path("leaving"), how.encode())
