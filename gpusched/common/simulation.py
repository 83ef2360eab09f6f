"""The files of a simulation: its GPUs, and the processes that hold their memory. Standard library only.

A simulation is a directory that all its processes share.

    box               key=value: spec; optional: fail=TEXT (nothing answers), release_ms
    lock              locked while a program reads the free memory and takes some
    events.log        one JSON object a line: grab, exit, dead, oom; for the audit of the tests
    gpuN/state        key=value: uuid name total bus, and what anybody may change at any time
    gpuN/p/PID-START  one process and what it holds there: mib user program kind util job foreign

In key=value files the last line of a key wins, so `echo fail=lost >> gpu2/state` is a change.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from gpusched.common.files import read_regular, write_atomically
from gpusched.common.processes import process_start

ENV_DIRECTORY = "GPUSCHED_SIMULATION"  # the directory; jobs get it
MAX_GPUS = 64
KEYS_LIMIT_BYTES = 64 << 10
MODELS = {  # name on the command line -> name of the board, memory in MiB
    "A100": ("NVIDIA A100-SXM4-80GB", 81920),
    "A100-40GB": ("NVIDIA A100-SXM4-40GB", 40960),
    "H100": ("NVIDIA H100 80GB HBM3", 81559),
    "L40S": ("NVIDIA L40S", 46068),
    "RTX4090": ("NVIDIA GeForce RTX 4090", 24564),
    "RTX3090": ("NVIDIA GeForce RTX 3090", 24576),
    "V100": ("Tesla V100-SXM2-32GB", 32768),
    "T4": ("Tesla T4", 15360),
}


class Record(NamedTuple):
    """Memory that a process holds on one simulated GPU."""

    name: str  # PID-START
    pid: int
    alive: bool  # False: dead, its memory is not back yet
    keys: dict[str, str]

    @property
    def mib(self) -> int:
        return number(self.keys.get("mib"))

    @property
    def holder(self) -> str:
        """The owner of this memory; all processes of a job are one holder."""
        return self.keys.get("job") or self.name


# ---- making one ------------------------------------------------------------------------------------


def parse_spec(spec: str) -> list[str]:
    """Return the models of a spec: "4", "2xT4", "2xA100+2xT4". Raises ValueError with a message for people."""
    models: list[str] = []
    for part in spec.replace(",", "+").split("+"):
        match = re.fullmatch(r"(\d+)(?:[xX*]([A-Za-z][\w-]*))?|([A-Za-z][\w-]*)", re.sub(r"\s", "", part))
        if not match:
            raise ValueError(f"{part.strip()!r} is not a number of GPUs such as 4, 4xA100 or 2xA100+2xT4")
        name = (match[2] or match[3] or "A100").upper()
        if name not in MODELS:
            raise ValueError(f"no model {name}; there are {', '.join(MODELS)}")
        models += [name] * int(match[1] or 1)
        if not 1 <= len(models) <= MAX_GPUS or match[1] == "0":
            raise ValueError(f"a simulation has 1 to {MAX_GPUS} GPUs")
    return models


def spec_name(models: list[str]) -> str:
    """Return the normal form of a spec, which also names the directory."""
    return "+".join(f"{len(list(group))}x{model}" for model, group in itertools.groupby(models))


def locate(simulate: str | None, environment: Mapping[str, str]) -> str:
    """Return the directory of a simulation, created if there is none. Raises ValueError with a message for people.

    `simulate` is a spec or the path of a simulation; without it, GPUSCHED_SIMULATION is the path.
    """
    inherited = environment.get(ENV_DIRECTORY, "")
    if not simulate and not inherited:
        raise ValueError(f"{ENV_DIRECTORY} is not set")
    path = simulate or inherited
    if not simulate or os.sep in path or is_simulation(path):
        if not is_simulation(path):
            raise ValueError(f"no simulation in {path}; use a number of GPUs such as 4 or 4xA100")
        return os.path.abspath(path)
    models = parse_spec(simulate)
    directory = os.path.abspath(inherited) if inherited else os.path.join(_home(), spec_name(models))
    create(directory, models)
    spec = read_keys(os.path.join(directory, "box")).get("spec", "")
    if spec != spec_name(models):
        raise ValueError(f"the simulation in {directory} is {spec}, not {spec_name(models)}")
    return directory


def is_simulation(directory: str) -> bool:
    return bool(directory) and os.path.exists(os.path.join(directory, "box"))


def _home() -> str:
    """Return the directory of this user's simulations. Raises ValueError if it belongs to another user."""
    path = os.path.join(tempfile.gettempdir(), f"gpusched-simulations-{os.getuid()}")
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise ValueError(f"{path} belongs to another user; set {ENV_DIRECTORY} to a directory of your own")
    return path


def create(directory: str, models: list[str]) -> None:
    """Create the simulation in this directory, unless there is one. Two programs may do so at once."""
    if is_simulation(directory):
        return
    os.makedirs(directory, mode=0o700, exist_ok=True)
    for n, model in enumerate(models):
        name, total = MODELS[model]
        digest = hashlib.sha256(os.fsencode(f"{os.path.realpath(directory)}/{n}")).hexdigest()
        uuid = f"GPU-{digest[:8]}-51a0-{digest[8:12]}-{digest[12:16]}-{digest[16:28]}"
        os.makedirs(os.path.join(gpu_path(directory, n), "p"), mode=0o700, exist_ok=True)
        state = os.path.join(gpu_path(directory, n), "state")
        if not os.path.exists(state):
            bus = f"00000000:{n + 1:02X}:00.0"
            write_keys(state, {"uuid": uuid, "name": name, "total": total, "bus": bus})
    write_keys(os.path.join(directory, "box"), {"spec": spec_name(models)})


def gpu_path(directory: str, n: int) -> str:
    return os.path.join(directory, f"gpu{n}")


def gpu_numbers(directory: str) -> list[int]:
    """Return the number of each GPU of the simulation in PCI order, present or not."""
    count = 0
    while os.path.exists(os.path.join(gpu_path(directory, count), "state")):
        count += 1
    return list(range(count))


# ---- key=value files -------------------------------------------------------------------------------


def read_keys(path: str) -> dict[str, str]:
    """Read the keys of a file; empty if there is no file."""
    try:
        text = read_regular(path, KEYS_LIMIT_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return {}
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def write_keys(path: str, keys: Mapping[str, object]) -> None:
    """Replace a file in one step, so that no reader sees a part of it."""
    text = "".join(f"{key}={' '.join(str(value).split())}\n" for key, value in keys.items())
    write_atomically(path, text.encode("utf-8", "surrogateescape"))


def change_keys(path: str, **changes: object) -> None:
    """Set keys of a file; None removes a key."""
    keys: dict[str, object] = {**read_keys(path), **changes}
    write_keys(path, {key: value for key, value in keys.items() if value is not None})


def number(text: str | None) -> int:
    """Return the whole number in a value; 0 if there is none."""
    try:
        return int(float(text or 0))
    except (ValueError, OverflowError):
        return 0


# ---- processes -------------------------------------------------------------------------------------


def own_name() -> str:
    return f"{os.getpid()}-{process_start(os.getpid())}"


def holders(directory: str, n: int, release_ms: int = 0) -> list[Record]:
    """Return the holders of memory on GPU n. Removes dead processes after their delay; they are logged first."""
    folder = os.path.join(gpu_path(directory, n), "p")
    records: list[Record] = []
    for name in sorted(os.listdir(folder)):
        pid, _, start = name.partition("-")
        if not (pid.isdigit() and start.isdigit()):
            continue
        keys = read_keys(os.path.join(folder, name))
        if not keys:
            continue
        alive = process_start(int(pid)) == int(start)
        if alive or not _remove_dead(directory, n, name, release_ms):
            records.append(Record(name, int(pid), alive, keys))
    return records


def _remove_dead(directory: str, n: int, name: str, delay_ms: int) -> bool:
    """Free the memory of a dead process. Return False if its delay is not over yet.

    The delay begins when a program notices the death first.
    """
    path = os.path.join(gpu_path(directory, n), "p", name)
    stamp = f"{path}.dead"
    try:
        since = os.stat(stamp).st_mtime
    except FileNotFoundError:
        since = time.time()
        log(directory, "dead", gpu=n, name=name)
        if delay_ms:
            open(stamp, "ab").close()
    if (time.time() - since) * 1000 < delay_ms:
        return False
    for victim in (path, stamp):
        with suppress(FileNotFoundError):
            os.unlink(victim)
    return True


@contextmanager
def locked(directory: str) -> Iterator[None]:
    """Hold the simulation's lock, which ends with the process."""
    with open(os.path.join(directory, "lock"), "ab") as file:
        os.lockf(file.fileno(), os.F_LOCK, 0)
        yield


def log(directory: str, event: str, **keys: object) -> None:
    """Append one event in a single write, so that lines never mix."""
    line = json.dumps({"t": round(time.time(), 6), "event": event, **keys}) + "\n"
    with open(os.path.join(directory, "events.log"), "ab", buffering=0) as file:
        file.write(line.encode())
