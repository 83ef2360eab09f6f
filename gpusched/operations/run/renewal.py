"""Reasons for which a dispatcher that stays gives way to a new process: a newer gpusched, and GPUs that are back."""

from __future__ import annotations

import re
import time
from contextlib import closing, suppress

import gpusched
from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings
from gpusched.host.gpus.device_source import NoSource, open_source, read_once
from gpusched.operations.box.devices import BoxDevices
from gpusched.operations.run.background import may_have_gpus

LOOK_EVERY_S = 60.0
GPUS_WITHIN_S = 2.0  # the dispatcher waits so long for their answer


class Renewal:
    """Looks at the box now and then, at little cost."""

    def __init__(self, settings: Settings, devices: BoxDevices) -> None:
        self.why = ""  # the reason, once there is one
        self._settings, self._devices = settings, devices
        self._path = str(gpusched.__file__)
        self._due_s = time.monotonic() + LOOK_EVERY_S
        self._seen = gpusched.__version__  # at the last look

    def reason(self) -> str:
        """Return why a new process is to go on; empty without a reason, or before it is time to look again."""
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + LOOK_EVERY_S
            self.why = self._look()
        return self.why

    def _look(self) -> str:
        before, self._seen = self._seen, _version_in(self._path)
        if self._seen == before and _parts(before) > _parts(gpusched.__version__):  # seen twice: it is all there
            return f"gpusched {before} was installed: going on with it"
        if isinstance(self._devices.source, NoSource) and self._has_gpus_again():
            return "there are GPUs now: beginning anew with them"
        return ""

    def _has_gpus_again(self) -> bool:
        if may_have_gpus(self._settings):
            with suppress(GpuschedError), closing(open_source(self._settings.simulate)) as source:
                return bool(read_once(source, GPUS_WITHIN_S).devices)
        return False


def _version_in(path: str) -> str:
    """Return the version that this file states; empty if it cannot be read, as in the middle of an installation."""
    with suppress(OSError), open(path, encoding="utf-8") as file:
        found = re.search(r'^__version__ = "([^"]+)"', file.read(), re.MULTILINE)
        return found[1] if found else ""
    return ""


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
