"""A systemd user unit that dispatches a queue from boot on. Dispatches nothing itself."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping

from gpusched.common import errors
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.files import user_dir, write_atomically
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.operations.run import logout
from gpusched.operations.run.background import OF_THE_BOX

IDLE_EXIT = "1000d"  # it stays
_KEPT = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", *OF_THE_BOX)  # say where queues, settings and claims are
_UNIT = """\
[Unit]
Description=gpusched: dispatch the queue {name}

[Service]
ExecStart={command}
{environment}KillMode=process
KillSignal=SIGQUIT
Restart=on-failure
RestartSec=30
SuccessExitStatus={fine}
RestartPreventExitStatus={final}

[Install]
WantedBy=default.target
"""


def unit_path(queue_dir: QueueDir) -> str:
    """Return the path of the unit of a queue. Raises GpuschedError for a user without a home directory."""
    directory = os.path.dirname(user_dir("XDG_CONFIG_HOME", ".config"))
    if not directory:
        raise GpuschedError("there is no home directory for a unit", hint="set HOME", exit_code=EXIT_CANNOT_WORK)
    return f"{directory}/systemd/user/gpusched-{re.sub(r'[^A-Za-z0-9_.-]', '_', queue_dir.name)}.service"


def unit_text(queue_dir: QueueDir, environ: Mapping[str, str]) -> str:
    """Return the unit: started at boot and after a failure. Where it is stopped, the jobs that run go on."""
    words = [sys.executable, "-m", "gpusched", "start", "-q", queue_dir.path, "--quiet", "--idle-exit", IDLE_EXIT]
    kept = [f"Environment={_quoted(f'{name}={environ[name]}')}\n" for name in _KEPT if environ.get(name)]
    fine = (errors.EXIT_SOME_FAILED, errors.EXIT_INTERRUPTED, errors.EXIT_QUIT, errors.EXIT_TERMINATED)
    return _UNIT.format(
        name=queue_dir.name.replace("%", "%%"),
        command=" ".join(map(_quoted, words)),
        environment="".join(kept),
        fine=" ".join(map(str, fine)),
        final=f"{errors.EXIT_USAGE} {errors.EXIT_DISPATCHED_ELSEWHERE}",
    )


def _quoted(word: str) -> str:
    """Return a word as a unit states it."""
    if re.fullmatch(r"[\w@+=:,./-]+", word):
        return word
    return '"' + re.sub(r'([\\"])', r"\\\1", word).replace("%", "%%").replace("$", "$$") + '"'


def install(queue_dir: QueueDir, notify: Callable[[str], None]) -> None:
    """Write the unit, have it started at boot, and start it unless a dispatcher works on the queue."""
    path = unit_path(queue_dir)
    name = os.path.basename(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_atomically(path, unit_text(queue_dir, os.environ).encode())
    _systemctl("daemon-reload")
    pid = queue_dir.dispatcher()
    _systemctl("enable", *(["--now"] if pid is None else []), name)
    notify(f"installed {path}; to remove it: systemctl --user disable --now {name} && rm {shlex.quote(path)}")
    if pid is not None:
        notify(f"{queue_dir.path} is being dispatched already (pid {pid}): the unit starts at the next boot")
    if not logout.lingers():
        notify("it runs only while you are logged in; `loginctl enable-linger` starts it at boot")


def _systemctl(*words: str) -> None:
    """Run systemctl for this user. Raises GpuschedError with what it says if it fails."""
    try:
        logout.run_for_user(["systemctl", "--user", *words])
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip()
        hint = "without systemd, let cron do it: @reboot gpusched start --detach"
        problem = f"`systemctl --user {words[0]}` fails: {said}"
        raise GpuschedError(problem, hint=hint, exit_code=EXIT_CANNOT_WORK) from None
