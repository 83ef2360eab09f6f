"""The address of the page: a port of this host, and a word that nobody can guess, kept so that tabs stay valid."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shlex
import socket
import stat
from contextlib import suppress
from typing import NamedTuple

from gpusched.common.digests import blake2b
from gpusched.common.errors import EXIT_CANNOT_WORK, GpuschedError
from gpusched.common.files import open_regular, user_dir, write_atomically

HOST = "127.0.0.1"
TOKEN_BYTES = 24
_FILE_BYTES = 200


class PageAddress(NamedTuple):
    """A port that listens, and the token that the page asks for."""

    listener: socket.socket
    token: str

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/{self.token}/"

    @property
    def tunnel(self) -> str:
        """The command that makes the same address valid on another machine."""
        try:
            who = f"{getpass.getuser()}@"
        except (KeyError, OSError):  # a user without a name
            who = ""
        return f"ssh -N -L {self.port}:{HOST}:{self.port} {shlex.quote(who + os.uname().nodename)}"


def open_address(shown: str, port: int | None = None) -> PageAddress:
    """Listen at the address that the page of these queues had last, or at a new one, and keep it for the next time.

    A token is kept only together with its port: whoever takes the port meanwhile may learn it from an open tab. Raises
    GpuschedError if `port` is wanted and cannot be had.
    """
    path = _path(shown)
    kept = _read(path)
    listener = None
    if kept is not None and port in (None, kept[0]):
        with suppress(OSError):
            listener = _listen(kept[0])
    token = kept[1] if kept is not None and listener is not None else secrets.token_urlsafe(TOKEN_BYTES)
    if listener is None:
        try:
            listener = _listen(port or 0)
        except OSError as error:
            problem, hint = f"port {port} cannot be had: {error.strerror}", "choose another --port, or leave it out"
            raise GpuschedError(problem, where="--port", hint=hint, exit_code=EXIT_CANNOT_WORK) from None
    address = PageAddress(listener, token)
    if path:
        with suppress(OSError):  # a home that cannot be written: another address next time
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            write_atomically(path, f"{address.port} {token}\n".encode())
    return address


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener


def _path(shown: str) -> str:
    """Return the file that keeps the address of the page of these queues on this host; "" without a home directory."""
    state = user_dir("XDG_STATE_HOME", ".local/state")
    name = blake2b(os.fsencode(f"{os.uname().nodename}\0{shown}"), digest_size=8).hexdigest()
    return os.path.join(state, "web", name) if state else ""


def _read(path: str) -> tuple[int, str] | None:
    """Return the port and the token in a file of this user, unless somebody else could read it too."""
    try:
        with open(open_regular(path), "rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(_FILE_BYTES)
    except OSError:
        return None
    words = re.fullmatch(rb"([1-9][0-9]{0,4}) ([\w-]{32})\n", text)
    if words is None or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        return None
    return int(words[1]), words[2].decode()
