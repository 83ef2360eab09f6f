"""Dispatchers in the background: started by a submission, or what a run on a terminal becomes. Dispatches nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.libraries import refuse_missing
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import SETTINGS, Settings
from gpusched.core.jobs.environment import is_of_a_shell
from gpusched.core.model import Device
from gpusched.host.queue.queue_dirs import LOCK_FD, QueueDir
from gpusched.host.store import Store, job_table, meta_table
from gpusched.host.store.meta_table import cluster_of

OF_THE_BOX = (SETTINGS["claims_dir"].env,)  # two dispatchers that claim in different places take one GPU
_REAL = "real_gpus"  # in the store: not empty if a queue was dispatched on real GPUs last
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # the second is that of WSL


def may_have_gpus(settings: Settings) -> bool:
    """Return True if this box has a driver of GPUs, or simulates them. Asks no GPU."""
    simulates = settings.simulate or os.environ.get("GPUSCHED_SIMULATION")
    return bool(simulates) or any(map(os.path.exists, _DRIVERS)) or _has_nvml()


def _has_nvml() -> bool:
    """Return True if NVIDIA's library is here, as on boards whose GPU is another device file."""
    import ctypes  # not needed on a box with GPUs

    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def warn_without_gpus(queue_dir: QueueDir, settings: Settings, gpus: int, notify: Callable[[str], None]) -> None:
    """Say that jobs with so many GPUs wait, if this box has none. A dispatcher that works may simulate some."""
    has_gpus, number = may_have_gpus(settings), os.environ.get(SETTINGS["simulate"].env)
    if not gpus or (has_gpus and not number) or queue_dir.dispatcher() is not None:
        return
    if not has_gpus:
        notify("this box shows no GPU: CPU jobs run, the others wait until there is one")
    else:
        remedy = f"`simulate: {number}` in your settings file, or `gpusched start --detach --simulate {number}`"
        notify(f"a dispatcher in the background reads no variable of this shell; to simulate GPUs there: {remedy}")


def autostart(queue_dir: QueueDir, settings: Settings, notify: Callable[[str], None]) -> int | None:
    """Start a dispatcher in the background; return its pid, or None if one works on the queue, or none is wanted."""
    if not settings.autostart or queue_dir.dispatcher() is not None:
        return None
    with Store(queue_dir.database, read_only=True) as store:
        if cluster := cluster_of(store):
            notify(f"the head of the cluster {cluster} is not at work: `gpusched cluster up HOSTS.yaml` starts it")
            return None
    return start_detached(queue_dir, notify)


def refuse_cluster(store: Store, queue_dir: QueueDir) -> None:
    """Raise GpuschedError for the queue of a cluster: a dispatcher of this box would take its jobs from the nodes."""
    if cluster := cluster_of(store):
        problem = f"is the queue of the cluster {cluster}: its head hands the jobs to the nodes"
        hint = f"`gpusched submit -q {cluster}` adds jobs, `gpusched cluster up HOSTS.yaml` starts the head"
        raise GpuschedError(problem, where=queue_dir.path, hint=hint, exit_code=EXIT_CANNOT_WORK)


def note_gpus(store: Store, devices: Iterable[Device]) -> None:
    """Note if a queue is dispatched on real GPUs or on simulated ones; without any, what was noted stays."""
    kinds = {"" if device.is_simulated else "1" for device in devices}
    if kinds and meta_table.read(store, _REAL) != (kind := max(kinds)):
        meta_table.write(store, _REAL, kind)


def begin_simulation(store: Store, queue_dir: QueueDir, settings: Settings) -> None:
    """Take a queue for simulated GPUs, if there are to be some: jobs that it gets from now on are for them.

    Raises GpuschedError where jobs would run on real GPUs without a look at them, as if those were simulated.
    """
    if not settings.simulate or not meta_table.read(store, _REAL):
        return
    if job_table.wants_gpus(store):
        problem = "has jobs for the GPUs of this box, and --simulate would start them there without a look at who is on"
        hint = "leave --simulate out, or simulate GPUs for another queue: -q NAME"
        raise GpuschedError(problem, where=queue_dir.path, hint=hint)
    if queue_dir.dispatcher() is None:
        meta_table.write(store, _REAL, "")


def start_as_stated(
    queue_dir: QueueDir,
    loaded: LoadedSettings,
    notify: Callable[[str], None],
    environ: Mapping[str, str] | None = None,
) -> int | None:
    """Start the dispatcher of a queue as `start_detached` does, by the settings that a person has stated.

    Raises GpuschedError where it may not simulate GPUs: see `begin_simulation`.
    """
    with Store(queue_dir.database) as store:
        begin_simulation(store, queue_dir, loaded.settings)
    return start_detached(queue_dir, notify, loaded.stated(), environ)


def start_detached(
    queue_dir: QueueDir,
    notify: Callable[[str], None],
    stated: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> int | None:
    """Start the dispatcher of a queue in a session of its own; return its pid, or None if another one is there.

    `stated` are settings that count for it alone. It gets the lock of the queue, so that there is never a second one;
    the directory /; and by default nothing of this shell that chooses GPUs or settings, but where claims lie. Its
    output goes to the log of the queue. `notify` gets a line if a logout will end it.
    """
    import subprocess  # not needed by a submission to a queue that is dispatched

    from gpusched.operations.run import logout

    stated = stated or {}
    if stated.get("notify"):
        refuse_missing("--notify", ["apprise"])
    if (lock := queue_dir.take()) is None:
        return None
    if environ is None:
        environ = {name: value for name, value in os.environ.items() if not is_of_a_shell(os.fsencode(name))}
        environ |= {name: os.environ[name] for name in OF_THE_BOX if name in os.environ}
    if not (scope := logout.scope_words(environ)):
        logout.warn(notify)
    open_to_all = [name for name in stated if not SETTINGS[name].is_secret]  # as a command line is
    flags = [word for name in open_to_all for word in SETTINGS[name].flags_for(stated[name])]
    secrets = {SETTINGS[name].env: str(stated[name]) for name in stated.keys() - open_to_all}
    log = queue_dir.open_log()
    try:
        process = subprocess.Popen(
            [*scope, sys.executable, "-m", "gpusched", "start", "-q", queue_dir.path, "--quiet", *flags],
            cwd="/",
            env={**environ, **secrets, LOCK_FD: str(lock)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock],
        )
    finally:
        os.close(log)
        os.close(lock)
    process.returncode = 0  # it outlives us by design: there is nothing to wait for
    return process.pid


def fork(queue_dir: QueueDir, lock: int) -> int | None:
    """Go on in a process of its own, without this terminal. Return its pid, and None in it.

    Nothing may be open that two processes cannot share: no database, no source of readings.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if pid := os.fork():
        os.close(lock)
        return pid
    os.setsid()
    null, log = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), queue_dir.open_log()
    for fd, target in enumerate((null, log, log)):
        os.dup2(target, fd)
    os.environ[LOCK_FD] = str(lock)
    return None


def begin_anew(lock: int) -> NoReturn:
    """Replace this process by a new one of the same command line, which gets the lock. Raises OSError."""
    os.set_inheritable(lock, True)
    os.environ[LOCK_FD] = str(lock)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
