"""The dispatcher of a standing queue: in this process, or detached from it. Prints nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from gpusched.common.errors import EXIT_DISPATCHED_ELSEWHERE
from gpusched.config.layers import LoadedSettings
from gpusched.config.settings import Settings
from gpusched.dispatcher import Hooks, Quiet
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.lists.submit import SubmitOptions
from gpusched.operations.devices import open_devices
from gpusched.operations.queues import ignore
from gpusched.operations.run import QUIET_SESSION, RunQueue, RunSession, set_up_log
from gpusched.operations.standing.stored import with_stored

_OF_A_SHELL = re.compile(r"(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|GPU_DEVICE_ORDINAL|GPUSCHED_\w*")


def dispatch_standing(
    queue_dir: QueueDir, loaded: LoadedSettings, session: RunSession = QUIET_SESSION, *, stays: bool = True
) -> int:
    """Dispatch a queue, for jobs that come later too, and return the exit code.

    It leaves after `idle_exit` without a job, or at once if it does not stay; with 75 if another dispatcher works on
    the queue.
    """
    with RunQueue(queue_dir) as queue:
        options = SubmitOptions(with_stored(loaded, queue.store), b"/")
        settings = options.settings
        if session.log_level is not None:
            set_up_log(queue_dir, session.log_level)
        with session.watch(queue) as observer, open_devices(settings, 0) as devices:
            hooks = Hooks(observer=observer or Quiet(), follow=True, idle_exit_s=settings.idle_exit if stays else 0.0)
            code = queue.dispatch(options, devices, hooks=hooks, notify=session.notify, submitted=False)
        if code == EXIT_DISPATCHED_ELSEWHERE:
            session.notify(f"{queue_dir.path} is being dispatched by pid {queue_dir.dispatcher()}; leaving (75)")
        return code


def autostart(queue_dir: QueueDir, settings: Settings, *, notify: Callable[[str], None] = ignore) -> bool:
    """Start a dispatcher in the background unless one works on the queue; return True if one was started."""
    if queue_dir.dispatcher() is not None or not settings.autostart:
        return False
    start_detached(queue_dir)
    return True


def start_detached(queue_dir: QueueDir, flags: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> int:
    """Start the dispatcher of a queue in a session of its own, with its output in the log of the queue; return its pid.

    It has nothing of this shell that chooses GPUs or settings, and the directory /.
    """
    environ = os.environ if environ is None else environ
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    log = os.open(queue_dir.log, append, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpusched", "start", "-q", queue_dir.path, "--quiet", *flags],
            cwd="/",
            env={name: value for name, value in environ.items() if not _OF_A_SHELL.fullmatch(name)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    process.returncode = 0  # it outlives us by design: there is nothing to wait for
    return process.pid
