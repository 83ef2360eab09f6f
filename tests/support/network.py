"""Boxes with addresses and cables of their own: network namespaces on this machine, joined by a bridge. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType


def can_be_made() -> bool:
    """Return True if this user may make network namespaces here."""
    if os.getuid() or not shutil.which("ip"):
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0


class Network:
    """A network with a box for each name; this machine itself is in it, too."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._mark = f"gs{os.getpid() % 65536:04x}"
        high, low = divmod(os.getpid() % 65536, 256)
        self._prefix = f"10.{high}.{low}"
        self.ip = f"{self._prefix}.1"

    def ip_of(self, name: str) -> str:
        return f"{self._prefix}.{2 + self._names.index(name)}"

    def program(self, name: str) -> list[str]:
        """Return the words before a command that is to run on this box."""
        return ["nsenter", f"--net=/run/netns/{self._mark}{name}"]

    def cut(self, name: str) -> None:
        _ip(f"link set {self._mark}{name} down")

    def mend(self, name: str) -> None:
        _ip(f"link set {self._mark}{name} up")

    def __enter__(self) -> Network:
        _ip(f"link add {self._mark} type bridge")
        _ip(f"addr add {self.ip}/24 dev {self._mark}")
        _ip(f"link set {self._mark} up")
        for name in self._names:
            space = f"{self._mark}{name}"
            _ip(f"netns add {space}")
            _ip(f"link add {space} type veth peer name eth0 netns {space}")
            _ip(f"link set {space} master {self._mark} up")
            _ip(f"-n {space} addr add {self.ip_of(name)}/24 dev eth0")
            for device in ("eth0", "lo"):
                _ip(f"-n {space} link set {device} up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._names:
            _ip(f"netns del {self._mark}{name}", check=False)
        _ip(f"link del {self._mark}", check=False)


def _ip(words: str, *, check: bool = True) -> None:
    subprocess.run(["ip", *words.split()], check=check, capture_output=True)
