"""The work of the verbs of `gpusched cluster`: up, join, leave, status, down."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from gpusched.cluster import boxes
from gpusched.cluster.boxes import HEAD, PORT, BoxConfig
from gpusched.cluster.keeper import start_keeper
from gpusched.cluster.leases import LeaseTerms
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.files import read_json_object
from gpusched.common.libraries import install_command, refuse_missing
from gpusched.common.quantities import parse_duration
from gpusched.config.settings import SETTINGS
from gpusched.core.plan.board import ClusterView
from gpusched.host import locks
from gpusched.host.queue import published, queue_dirs
from gpusched.host.store import Store, meta_table

BEGIN_S = 120.0  # that a box may take to be ready
REACH_S = 5.0  # that a head may take to answer
RAY_FROM, RAY_BELOW = (2, 60), (2, 62)
NODE_SETTINGS = (
    *("gpu_list", "max_gpus", "max_jobs_per_gpu", "setup", "shell", "cpus", "ram", "cpu_jobs"),
    *("max_checks", "poll_interval", "gpu_mem_threshold", "free_when", "simulate", "claims_dir"),
)
LOGS = ("ray.log", "maker.log", "keeper.log")
_BAD_TOKEN = re.compile("[Aa]uthenticat.*(fail|invalid)|InvalidAuthToken|AuthenticationError")
_VERSIONS = r"Ray: (\S+)\s+Python: (\d+\.\d+)"
_BAD_VERSION = re.compile(f"Version mismatch.*?{_VERSIONS}.*?{_VERSIONS}", re.DOTALL)
_SSH_OPTIONS = ("-oBatchMode=yes", "-oConnectTimeout=15", "-oServerAliveInterval=15")
_SSH_FAILED = 255
HEAD_KEYS = ("ip", "port", "lease", "grace", "margin")


class HostWish(NamedTuple):
    """One box of HOSTS.yaml: how it is reached, and what `cluster join` is told there."""

    host: str
    node: str
    python: str = ""  # the interpreter there; empty: the same path as here
    options: tuple[str, ...] = ()


def check_ray() -> None:
    """Raise GpuschedError where Ray is missing, or is not of the versions that this gpusched speaks with."""
    refuse_missing("gpusched cluster", ["ray"], extra="cluster")
    version = importlib.metadata.version("ray")
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if not RAY_FROM <= numbers < RAY_BELOW:
        hint = f"on every box of the cluster: {install_command(['ray>=2.60,<2.62'])}"
        problem = f"Ray {version} is installed here, and 2.60 or 2.61 is needed"
        raise GpuschedError(problem, hint=hint, exit_code=EXIT_CANNOT_WORK)


def own_ip(toward: str = "") -> str:
    """Return the address of this box by which it reaches another one, or the others."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((toward or "192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


# ---- the head --------------------------------------------------------------------------------------


def start_head(cluster: str, terms: LeaseTerms, *, ip: str = "", port: int = PORT) -> BoxConfig:
    """Start the head of a cluster here, unless it is at work. Its queue is the standing one of this name."""
    check_ray()
    terms.check()
    address = ip or own_ip()
    box = BoxConfig(boxes.check_name(cluster, "name"), HEAD, f"{address}:{port}", address, port, terms)
    if boxes.read(cluster, HEAD) is None:
        box.refuse_busy_ports()
    queue_dirs.prepare(box.queue)
    queue_dirs.remember(box.queue)
    with Store(box.queue.database, create=True) as store:
        if box.queue.dispatcher() is not None and not meta_table.read(store, "cluster"):
            hint = f"`gpusched stop -q {cluster}` has it leave"
            raise GpuschedError("the queue of this name has a dispatcher of its own", where=cluster, hint=hint)
        meta_table.write(store, "cluster", cluster)
    if not os.path.exists(box.token):
        boxes.make_token(cluster)
    boxes.check_token(cluster)
    boxes.write(box)
    _begin(box, lambda: view(box) is not None)
    return box


def _begin(box: BoxConfig, is_ready: Callable[[], bool]) -> None:
    """Start the keeper of a box and wait until the box is ready. Raises GpuschedError with what Ray says otherwise."""
    if os.path.exists(box.path("leaving")):
        os.unlink(box.path("leaving"))
    if not locks.is_held(box.path("keeper.lock")):
        for name in LOGS:  # of an earlier start
            with suppress(FileNotFoundError):
                os.unlink(box.path(name))
        start_keeper(box)
    until_s = time.monotonic() + BEGIN_S
    while not is_ready():
        if problem := _hopeless(box):
            raise _not_ready(box, *problem)
        if time.monotonic() >= until_s:
            said = "\n".join(_tail(box.path(name)) for name in LOGS).splitlines()
            raise _not_ready(box, "it was not ready in time", *[line for line in said if "rror" in line][-1:])
        time.sleep(0.1)


def _hopeless(box: BoxConfig) -> tuple[str, str] | None:
    """Return what Ray says that no second try would change, and the remedy."""
    said = "".join(_tail(box.path(name)) for name in LOGS)
    if found := _BAD_VERSION.search(said):
        ray, python, own_ray, own_python = found.groups()
        problem = f"it has Ray {own_ray} and Python {own_python}, and the head Ray {ray} and Python {python}"
        return problem, f"on {box.node}, take a Python {python} and install ray=={ray} and the same gpusched there"
    if _BAD_TOKEN.search(said):
        return "its token is not that of the head", f"copy that of the head to {box.token}, mode 0600"
    return None


def _not_ready(box: BoxConfig, problem: str, *hints: str) -> GpuschedError:
    hint = "\n  ".join([*hints, f"more in {box.directory}/*.log"])
    return GpuschedError(f"{box.node} of {box.cluster}: {problem}", hint=hint, exit_code=EXIT_CANNOT_WORK)


def _tail(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()[-4000:]
    except OSError:
        return ""


# ---- a node ----------------------------------------------------------------------------------------


def join(box: BoxConfig) -> bool:
    """Make this box a node, and wait until the head has taken it; return False if it is one already.

    Raises GpuschedError if the head is not reached, or refuses it.
    """
    check_ray()
    boxes.check_token(box.cluster)
    if locks.is_held(box.path("keeper.lock")):
        return False
    was_node = boxes.read(box.cluster, box.node) is not None  # as after a reboot: its keeper goes on trying
    if not was_node:
        _reach(box.address)
        box.refuse_busy_ports()
    queue_dirs.prepare(box.queue)
    queue_dirs.remember(box.queue)
    Store(box.queue.database, create=True).close()
    if os.path.exists(box.path("status.json")):
        os.unlink(box.path("status.json"))
    boxes.write(box)

    def status() -> dict[str, Any]:
        return read_json_object(box.path("status.json"))

    try:
        _begin(box, lambda: bool(status().get("heard_at")))
        if refused := str(status().get("refused", "")):
            raise GpuschedError(f"the head does not take this node: {refused}", exit_code=EXIT_CANNOT_WORK)
    except BaseException:
        if not was_node:
            boxes.set_leaving(box, "now")
        raise
    return True


def _reach(address: str) -> None:
    """Raise GpuschedError if nobody answers there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACH_S).close()
    except (OSError, ValueError, OverflowError) as error:  # ValueError: of a port that is none
        problem = f"nobody answers at {address}: {getattr(error, 'strerror', None) or error}"
        hint = "is the head up (`gpusched cluster status` there), and does a firewall let this box reach its ports?"
        raise GpuschedError(problem, hint=hint, exit_code=EXIT_CANNOT_WORK) from None


def node_settings(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a node's dispatcher by their names with _ or -. Raises GpuschedError for others."""
    parsed: dict[str, Any] = {}
    for key, value in stated.items():
        name = key.replace("-", "_")
        if name not in NODE_SETTINGS:
            hint = f"known: {', '.join(NODE_SETTINGS)}".replace("_", "-")
            raise GpuschedError(f"{key!r} is no setting of a node", hint=hint)
        try:
            words = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            parsed[name] = SETTINGS[name].parse(words)
        except ValueError as error:
            raise GpuschedError(f"{value!r} cannot be right: {error}", where=key) from None
    return parsed


def leave(box: BoxConfig, *, at_once: bool) -> None:
    """Have this box leave: when what runs here has ended, or at once; then the jobs are queued again."""
    boxes.set_leaving(box, "now" if at_once else "drain")


def wait_until_left(box: BoxConfig) -> None:
    """Wait until the keeper of a box has ended."""
    while locks.is_held(box.path("keeper.lock")):
        time.sleep(0.2)


# ---- the whole -------------------------------------------------------------------------------------


def find(cluster: str | None, *, head: bool) -> list[BoxConfig]:
    """Return what this box is in a cluster: its head, or its nodes. Raises GpuschedError for nothing."""
    found = [box for box in boxes.all_here(cluster) if box.is_head is head]
    if not found:
        what = "the head of a cluster" if head else "a node of a cluster"
        where = f" {cluster}" if cluster else ""
        raise GpuschedError(f"this box is not {what}{where}", hint="`gpusched cluster up HOSTS.yaml` starts one")
    return found


def view(box: BoxConfig) -> ClusterView | None:
    """Return what the head has published, if it is at work."""
    return published.read_cluster(box.queue) if box.queue.dispatcher() is not None else None


def read_hosts(data: object, stem: str) -> tuple[str, Mapping[str, Any], list[HostWish]]:
    """Return the name of the cluster, its own options and its boxes, as HOSTS.yaml has them."""
    if not isinstance(data, dict) or not isinstance(data.get("hosts"), list):
        raise GpuschedError("holds no list `hosts:`", hint="hosts: [{host: gpu1, tags: [big]}, gpu2]")
    name = str(data.get("name", stem))
    own = {key: data[key] for key in HEAD_KEYS if key in data}
    if unknown := data.keys() - {"name", "hosts", *HEAD_KEYS}:
        hint = f"known: name, hosts, {', '.join(HEAD_KEYS)}"
        raise GpuschedError(f"unknown key {min(map(str, unknown))!r}", hint=hint)
    return boxes.check_name(name, "name"), own, [_host(each) for each in data["hosts"]]


def _host(entry: object) -> HostWish:
    values = {"host": entry} if isinstance(entry, str) else entry
    if not isinstance(values, dict) or not isinstance(values.get("host"), str):
        raise GpuschedError("a box has no host", where="hosts", hint="host: gpu1, or an alias of ~/.ssh/config")
    values = dict(values)
    host, python, tags = values.pop("host"), str(values.pop("python", "")), values.pop("tags", [])
    node = boxes.check_name(str(values.pop("node", host.split("@")[-1].split(".")[0])), "node")
    options = [f"--{key}={values.pop(key)}" for key in ("port", "hours") if key in values]
    options += [f"--tag={tag}" for tag in (tags if isinstance(tags, list) else [tags])]
    options += [f"--set={name}={value}" for name, value in node_settings(values).items()]
    return HostWish(host, node, python, tuple(options))


def join_by_ssh(head: BoxConfig, wish: HostWish) -> subprocess.Popen[bytes]:
    """Start `cluster join` on another box, as this user. The token goes by its standard input."""
    words = [wish.python or sys.executable, "-m", "gpusched", "cluster", "join", head.address]
    words += ["--name", head.cluster, "--node", wish.node, "--token-file", "-", *wish.options]
    for key, value in zip(("lease", "grace", "margin"), head.terms, strict=True):
        words += [f"--{key}", f"{value:g}"]
    is_here = wish.host in ("localhost", "127.0.0.1", os.uname().nodename, head.ip)
    command = words if is_here else ["ssh", *_SSH_OPTIONS, "--", wish.host, shlex.join(words)]
    with open(head.token, "rb") as token:
        return subprocess.Popen(command, stdin=token, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def answer_of(joining: subprocess.Popen[bytes], wish: HostWish) -> tuple[bool, list[str]]:
    """Wait for a box that joins by ssh; return True if it is a node now, and what was said, in a few lines."""
    said = joining.communicate()[0].decode("utf-8", "replace").split("\n")
    lines = [line.strip() for line in said if line.strip()]
    own = [line.removeprefix("gpusched: ") for line in lines]
    if joining.returncode == _SSH_FAILED:
        return False, [*own[-1:], f"`ssh {wish.host} true` must work without a question"]
    if joining.returncode and own == lines:  # it is not gpusched that speaks
        return False, [*own[-1:], "`python:` in HOSTS.yaml names the interpreter there that has gpusched"]
    return joining.returncode == 0, own


def terms_of(values: Mapping[str, Any]) -> LeaseTerms:
    """Return the terms of a lease with those that are stated. Raises GpuschedError for a lease that is too short."""
    stated: dict[str, float] = {}
    for key in ("lease", "grace", "margin"):
        try:
            if values.get(key) is not None:
                stated[f"{key}_s"] = parse_duration(str(values[key]))
        except ValueError as error:
            raise GpuschedError(f"{values[key]!r} is no time", where=key, hint=str(error)) from None
    return LeaseTerms()._replace(**stated).check()


def read_yaml(path: str) -> object:
    """Return what a YAML file holds. Raises GpuschedError for one that cannot be read."""
    import yaml

    try:
        with open(path, "rb") as file:
            return yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise GpuschedError(f"cannot be read: {error}", where=path) from None
