"""Notices: processes that tell people of events, by a command of theirs or by Apprise. As a program: send one.

Nobody waits for them: each is detached, and killed after a minute. What they write goes to the dispatcher's log.
"""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from gpusched.common.text import MASK
from gpusched.host.queue.queue_dirs import QueueDir

EVERY_S = 60.0  # at most one notice of an event within so long; the newest one is sent then
LIMIT_S = 60  # for the process that sends it
URLS = "GPUSCHED_NOTIFY"  # the variable with the URLs: a command line can be read by everyone

# By event: the settings that name what is done.
WAYS = {
    "finished": ("notify", "on_end"),
    "first_failure": ("notify",),  # since the start, or the last end
    "failed": ("on_fail",),
    "held": ("notify",),
    "gpu_lost": ("notify",),
}


class Notices:
    """The notices of one dispatcher. Moments are monotonic seconds."""

    def __init__(self, queue: QueueDir) -> None:
        self._queue = queue
        self._due: dict[str, tuple[str, str]] = {}  # by event: text and job; the newest takes the place of older ones
        self._again_s: dict[str, float] = {}  # by event: when the next one may be sent
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []  # each with the option that wants it
        self._has_failures = False  # since the start, or the last end

    def add(self, event: str, text: str, job_id: int | None = None) -> None:
        """Have people told of an event, as soon as that may be."""
        self._due[event] = text, "" if job_id is None else str(job_id)
        if event == "failed" and not self._has_failures:
            self._due["first_failure"] = self._due[event]
        if event in ("failed", "finished"):
            self._has_failures = event == "failed"

    def send(self, settings: Any, shell: Sequence[bytes], now_s: float) -> list[str]:
        """Start what is due; return in words what cannot be started.

        `settings` are those that WAYS names, among others; `shell` are the words before a command.
        """
        failures = []
        for event in [event for event in self._due if self._again_s.get(event, now_s) <= now_s]:
            text, job = self._due.pop(event)
            about = {"EVENT": event, "MESSAGE": text, "JOB_ID": job, "QUEUE": self._queue.path}
            for name in WAYS[event]:
                if wanted := getattr(settings, name):
                    self._again_s[event] = now_s + EVERY_S
                    flag = f"--{name.replace('_', '-')}"
                    try:
                        self._running.append((flag, self._start(wanted, () if name == "notify" else shell, about)))
                    except (OSError, ValueError) as error:
                        failures.append(f"{flag} cannot be started: {getattr(error, 'strerror', '') or error}")
        return failures

    def _start(self, wanted: str, shell: Sequence[bytes], about: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command of the user by this shell; without one, the program that sends to URLs."""
        words = [*map(os.fsdecode, shell), wanted] if shell else [sys.executable, "-m", "gpusched.host.queue.notices"]
        environ = {name: value for name, value in os.environ.items() if name not in (URLS, "GPUSCHED_ATTEMPT")}
        environ |= {f"GPUSCHED_{name}": value for name, value in about.items()}
        with os.fdopen(self._queue.open_log(), "ab") as log:
            return subprocess.Popen(
                ["timeout", "-k", "5", str(LIMIT_S), *words],
                cwd=None if shell else "/",
                env=environ if shell else {**environ, URLS: wanted},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def reap(self, wait_s: float = 0.0) -> list[str]:
        """Wait so long, at most, for those that run; return in words which have failed."""
        until_s = time.monotonic() + wait_s
        for _, process in self._running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until_s - time.monotonic()))
        ended = [(flag, process.returncode) for flag, process in self._running if process.returncode is not None]
        self._running = [each for each in self._running if each[1].returncode is None]
        causes = {124: f"stopped after {LIMIT_S} s"}  # by `timeout`
        where = f"{self._queue.log} has what it said"
        return [f"{flag} has failed: {causes.get(code, f'exit {code}')}; {where}" for flag, code in ended if code]


def _send_by_apprise(urls: str) -> str:
    """Send the notice that the environment holds to these URLs; return what went wrong, without secrets."""
    said = io.StringIO()
    logging.basicConfig(stream=said, format="%(message)s")
    try:
        from apprise import Apprise

        sender = Apprise()
        title = f"gpusched: {os.path.basename(os.environ['GPUSCHED_QUEUE'])} on {os.uname().nodename}"
        are_known = sender.add(urls)
        if sender.notify(body=os.environ["GPUSCHED_MESSAGE"], title=title) and are_known:
            return ""
    except Exception as error:  # of a library that knows a hundred services
        said.write(f"{type(error).__name__}: {error}")
    secrets = {word for word in re.split(r"[^\w.-]+", f"{urls} {unquote(urls)}") if len(word) > 3}
    pattern = "|".join(re.escape(word) for word in sorted(secrets, key=len, reverse=True))
    return re.sub(pattern, MASK, said.getvalue()).strip() or "no reason is known"


if __name__ == "__main__":
    if problem := _send_by_apprise(os.environ.pop(URLS)):
        sys.exit(f"--notify: the message was not sent: {problem}")
