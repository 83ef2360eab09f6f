"""The small file in which a dispatcher publishes the devices; readers need no NVML. Decides nothing."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from gpusched.common.files import write_atomically
from gpusched.core.model import Device, DeviceProcess, Sample
from gpusched.core.plan.availability import Availability, DeviceState
from gpusched.core.plan.board import Board, BoardDevice
from gpusched.core.plan.observe import device_view
from gpusched.core.plan.snapshot import Limits, Resident

SCHEMA_VERSION = 1
LIMIT_BYTES = 4 << 20


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
    device, view = Device(**item["device"]), item["view"]
    fields = view["availability"]
    sample = fields["sample"]
    if sample is not None:
        processes = sample["processes"]
        sample["processes"] = None if processes is None else tuple(DeviceProcess(**p) for p in processes)
        # the board of an older version may hold more of a sample
        fields["sample"] = Sample(**{key: value for key, value in sample.items() if key in Sample.__slots__})
    fields["state"] = DeviceState(fields["state"])
    fields["ours"] = tuple(fields["ours"])
    return BoardDevice(
        device,
        dataclasses.replace(
            device_view(device, Availability(**fields)),
            held=view["held"],
            looked=view["looked"],
            looked_again=view["looked_again"],
            refused=view["refused"],
            residents=tuple(Resident(**resident) for resident in view["residents"]),
        ),
    )


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
