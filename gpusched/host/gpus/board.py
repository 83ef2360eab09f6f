"""The small file in which a dispatcher publishes the devices; readers need no NVML. Decides nothing."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from typing import Any

from gpusched.common.files import write_atomically
from gpusched.core.model import Device, DeviceProcess, Sample
from gpusched.core.plan.availability import Availability, DeviceState
from gpusched.core.plan.snapshot import DeviceView, Limits, Resident

SCHEMA_VERSION = 1
LIMIT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BoardDevice:
    device: Device
    view: DeviceView

    @property
    def job_ids(self) -> tuple[int, ...]:
        """Jobs of this queue that are on it now."""
        return tuple(resident.job_id for resident in self.view.residents)


@dataclass(frozen=True, slots=True)
class Board:
    """What a dispatcher knew at `at`. `closed` and `gpus_closed` say why nothing may start; empty: it may."""

    at: float
    pid: int
    source: str
    limits: Limits
    max_checks: int
    threshold_bytes: int
    devices: tuple[BoardDevice, ...]
    closed: str = ""
    gpus_closed: str = ""
    waited_since: dict[int, float] = field(default_factory=dict)  # jobs that others have passed


def write(path: str, board: Board) -> None:
    document = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(board)}
    write_atomically(path, json.dumps(document).encode())


def read(path: str) -> Board | None:
    """The newest board, or None where there is none that can be read."""
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read(LIMIT_BYTES))
        if document.pop("schema_version") != SCHEMA_VERSION:
            return None
        document["limits"] = Limits(**document["limits"])
        document["waited_since"] = {int(job): since for job, since in document["waited_since"].items()}
        document["devices"] = tuple(_device(item) for item in document["devices"])
        return Board(**document)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _device(item: dict[str, Any]) -> BoardDevice:
    view = item["view"]
    known = view["availability"]
    sample = known["sample"]
    if sample is not None:
        processes = sample["processes"]
        sample["processes"] = None if processes is None else tuple(DeviceProcess(**p) for p in processes)
        # the board of an older version may hold more of a sample
        known["sample"] = Sample(**{key: value for key, value in sample.items() if key in Sample.__slots__})
    known["state"] = DeviceState(known["state"])
    known["ours"] = tuple(known["ours"])
    view["availability"] = Availability(**known)
    view["residents"] = tuple(Resident(**resident) for resident in view["residents"])
    return BoardDevice(Device(**item["device"]), DeviceView(**view))


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
