"""Tickets: who waits for GPUs, beside the claims, for all users of the box. Decides nothing.

A ticket is a lock file with a label, as a claim is. Its age is the time at which the file was made, which its user
cannot choose, so the file goes when the wait ends. The label says what is waited for; it may be replaced meanwhile.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from gpusched.common import processes
from gpusched.common.errors import GpuschedError
from gpusched.common.text import clean
from gpusched.core.plan.fairness import Ticket, Want
from gpusched.host import locks
from gpusched.host.gpus.claims import LABELS_LIMIT, Claims, read_label, uid_of, write_label

_PREFIX, _SUFFIX = "ticket-", ".lock"
OPENED_MAX = 16  # files of one user that are looked into, the oldest first
_DEVICES_MAX, _WORD_MAX, _LIMIT_BYTES = 256, 200, 32_768


class OwnTicket:
    """The ticket of this process. Whatever cannot be written is left: the wait goes on without it."""

    def __init__(self, claims: Claims) -> None:
        self.ticket: Ticket | None = None
        self._claims, self._user = claims, processes.user_name(os.getuid())
        self._fd: int | None = None
        self._path = ""

    def hold(self, want: Want, turn_at: float, *, check_s: float, queue: str, yields: Mapping[str, str]) -> None:
        """Take it, unless it is held, and say what is waited for."""
        with suppress(OSError, GpuschedError):
            if self._fd is None or not locks.is_named(self._fd, self._path):
                self.withdraw()
                self._path = f"{self._claims.directory()}/{_PREFIX}{os.urandom(8).hex()}{_SUFFIX}"
                self._fd = locks.take_file(self._path)
            if self._fd is None:
                return
            ticket = Ticket(
                os.getuid(),
                self._user,
                os.fstat(self._fd).st_ctime,
                want,
                turn_at=turn_at,
                check_s=check_s,
                queue=queue,
                yields=tuple(yields.items()),
                path=self._path,
            )
            if ticket != self.ticket:
                wanted = {"job": want.job_id, "gpus": want.gpus, "devices": want.devices, "turn_at": turn_at}
                write_label(self._path, {**wanted, "check_s": check_s, "queue": queue, "yields": yields})
                self.ticket = ticket

    def withdraw(self) -> None:
        """Give it back, if it is held."""
        if self._path:
            _remove(self._path)
        if self._fd is not None:
            os.close(self._fd)
        self.ticket, self._fd, self._path = None, None, ""


def read_tickets(claims: Claims, own: Ticket | None = None) -> list[Ticket]:
    """Return the oldest ticket of each user, and remove those of this user whose processes have ended.

    `own` is that of this process, which is not read again.
    """
    by_user: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for directory in claims.directories:
        for since_at, uid, path in _files(directory):
            by_user[uid].append((since_at, path))
    tickets: list[Ticket] = []
    for uid, files in by_user.items():
        oldest = sorted(files)[:OPENED_MAX]
        found = (own if own and path == own.path else _read(uid, path, since_at) for since_at, path in oldest)
        tickets += islice((ticket for ticket in found if ticket is not None), 1)
    return tickets


def _files(directory: str) -> Iterator[tuple[float, int, str]]:
    """Yield the files that may be tickets: when each was made, and by whom."""
    try:
        with os.scandir(directory) as entries:
            for entry in islice(entries, LABELS_LIMIT):
                if entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX):
                    with suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode):
                            yield status.st_ctime, status.st_uid, entry.path
    except OSError:  # nobody has made that directory
        return


def _read(uid: int, path: str, since_at: float) -> Ticket | None:
    """Return the ticket; None if nobody holds it, or its label makes no sense."""
    takers = locks.takers(path)
    if not (any(uid_of(pid) == uid for pid in takers) if takers else locks.is_held(path)):
        if uid == os.getuid():
            _remove(path)
        return None
    label = read_label(f"{path}.by-{uid}", _LIMIT_BYTES)
    try:
        fields: Any = json.loads(label[1]) if label is not None else None
        devices = tuple(_word(each) for each in fields["devices"][:_DEVICES_MAX])
        yields = tuple((_word(uuid), _word(user)) for uuid, user in islice(fields["yields"].items(), _DEVICES_MAX))
        want = Want(int(fields["job"]), int(fields["gpus"]), devices)
        turn_at, check_s, queue = float(fields["turn_at"]), float(fields["check_s"]), _word(fields["queue"])
    except Exception:  # another user wrote it: nothing that is in it may end this process
        return None
    if not (1 <= want.gpus <= len(devices) and math.isfinite(check_s) and math.isfinite(turn_at)):
        return None
    user = processes.user_name(uid)
    return Ticket(uid, user, since_at, want, turn_at=turn_at, check_s=check_s, queue=queue, yields=yields, path=path)


def _word(value: object) -> str:
    return clean(str(value)[:_WORD_MAX])


def _remove(path: str) -> None:
    """Remove the label first: what is left by a process that is killed in between is found again."""
    for each in (f"{path}.by-{os.getuid()}", path):
        with suppress(OSError):
            os.unlink(each)
