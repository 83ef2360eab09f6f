"""One start of Python and PyTorch for all stages that a shepherd runs one after another.

A stage under a shepherd hands its words, variables, directory and descriptors to the warm process of that shepherd,
which it starts if there is none, waits, and ends as the work has ended. The warm process only forks: it has PyTorch
loaded, and no thread, no CUDA context, no file of a job. For each stage it forks a keeper, which becomes a child of
the shepherd, so that the attempt's time, memory, signals and devices are counted as ever; and the keeper forks the
process that does the work, and kills it if the stage ends first.

It leaves with its shepherd, by any signal, or when nothing has come for IDLE_S. Wherever anything is in the way, the
stage does its work itself. Imports nothing heavy: a stage that hands its work over needs no more than this.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module

SHEPHERD = "GPUSCHED_SHEPHERD"  # the variable with the name of the shepherd's socket
PLOTS = "--plots"  # matplotlib takes as long to load as half of PyTorch
IDLE_S = 20.0
_TAKEN, _REFUSED = b"taken", b"refused"
_MOST_FDS = 253  # the kernel's limit for a message
_OF_A_JOB = (b"GPUSCHED_", b"CUDA_VISIBLE_DEVICES", b"PWD", b"OLDPWD", b"SHLVL", b"_=")

Main = Callable[[list[str]], int]


# ---- the stage -------------------------------------------------------------------------------------


def hand_over(words: list[str]) -> int | None:
    """Have the warm process of this shepherd run the stage; return the exit code. None: this process has to."""
    shepherd = os.environ.get(SHEPHERD, "")
    if not shepherd or not hasattr(os, "pidfd_open"):
        return None
    fds = [int(name) for name in os.listdir("/proc/self/fd")]
    fds = [0, 1, 2, *(fd for fd in fds if fd > 2 and _is_inherited(fd))]
    plots = next((PLOTS for word in words if word.startswith(PLOTS)), "")
    status = b""
    try:
        with _connect(shepherd, plots) as channel:
            socket.send_fds(channel, [b"."], [os.open(".", os.O_RDONLY), *fds])
            with channel.makefile("wb") as out:
                marshal.dump((words, dict(os.environb)), out)
            if channel.recv(len(_TAKEN)) != _TAKEN:
                return None
            with suppress(OSError):
                status = channel.recv(16)
    except OSError:
        return None
    return _end_as(status)


def _is_inherited(fd: int) -> bool:
    with suppress(OSError):
        return os.get_inheritable(fd)
    return False


def _connect(shepherd: str, plots: str) -> socket.socket:
    """Return a connection to the warm process; start it if there is none. Raises OSError."""
    address = f"\0{shepherd}-warm"
    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.connect(address)
    except ConnectionRefusedError:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno()), shepherd, plots],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_lasting(os.environb),
                pass_fds=[listener.fileno()],
                cwd="/",
                start_new_session=True,
            )
        channel.connect(address)
    if not _is_ours(channel):
        raise ConnectionRefusedError
    return channel


def _is_ours(channel: socket.socket) -> bool:
    """Return True if the other end is of this user: anybody may use an abstract name."""
    return memoryview(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)).cast("I")[1] == os.geteuid()


def _lasting(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the variables that all stages of a shepherd have in common."""
    return {name: value for name, value in environment.items() if not (name + b"=").startswith(_OF_A_JOB)}


def _end_as(status: bytes) -> int:
    """Return the exit code of the work; end by the same signal if it ended by one."""
    code = os.waitstatus_to_exitcode(int(status or signal.SIGKILL))  # or its keeper was killed
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core is enough
        with suppress(OSError):  # that of KILL cannot be set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


# ---- the warm process ------------------------------------------------------------------------------


def serve(listener_fd: int, shepherd: str, plots: str = "") -> None:
    """Fork for each stage that connects, until the shepherd ends or nothing comes any more. `plots`: they draw."""
    with socket.socket(fileno=listener_fd) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as lease:
        lease.connect(f"\0{shepherd}")
        lease.recv(1 << 16)  # its greeting
        lease.send(marshal.dumps({"op": "resident"}))  # so that it does not wait for this process
        from . import stage  # noqa: F401  (loaded for those who come)
        from .command_line import main

        with suppress(ImportError):
            if plots:
                import_module("matplotlib.backends.backend_agg")
        while select.select([listener.fileno(), lease.fileno()], [], [], IDLE_S)[0] == [listener_fd]:
            channel, _ = listener.accept()
            with channel:
                if not os.fork():
                    if os.fork():
                        os._exit(0)  # so that the keeper is a child of the shepherd
                    listener.close()
                    lease.close()
                    _keep(channel, main)
            os.wait()
        os._exit(0)  # at once: nothing of it is left behind the shepherd


def _keep(channel: socket.socket, main: Main) -> None:
    """Fork the process that does the work of one stage, tell how it ended, and end."""
    try:
        _, fds, _, _ = socket.recv_fds(channel, 1, _MOST_FDS)
        with channel.makefile("rb") as file:
            words, environment = marshal.load(file)
        if not _is_ours(channel) or _lasting(environment) != _lasting(os.environb):
            channel.send(_REFUSED)
            os._exit(0)
        channel.send(_TAKEN)
        if not (pid := os.fork()):
            channel.close()
            _work(words, environment, fds, main)
        handle = os.pidfd_open(pid)
        if handle not in select.select([handle, channel.fileno()], [], [])[0]:
            os.kill(pid, signal.SIGKILL)  # the stage was killed
        status = os.waitpid(pid, 0)[1]
        channel.send(str(status).encode())
    finally:
        os._exit(0)


def _work(words: list[str], environment: Mapping[bytes, bytes], fds: list[int], main: Main) -> None:
    """Run one stage with these words, variables and descriptors: of its directory, 0, 1, 2, and of claims."""
    code = 1
    try:
        os.setsid()
        os.fchdir(fds[0])
        for number, fd in enumerate(fds[1:4]):
            os.dup2(fd, number)
        for fd in fds[:4]:
            os.close(fd)
        os.environb.clear()
        os.environb.update(environment)
        code = main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(int(sys.argv[1]), *sys.argv[2:])
