"""The small file in which a dispatcher publishes the devices; readers need no NVML. Decides nothing."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict

from gpusched.common.files import read_regular, write_atomically
from gpusched.core.plan.board import Board

SCHEMA_VERSION = 1
LIMIT_BYTES = 4 << 20


def write(path: str, board: Board) -> None:
    document = {"schema_version": SCHEMA_VERSION, **asdict(board)}
    write_atomically(path, json.dumps(document).encode())


def read(path: str) -> Board | None:
    """Return the newest board; None where there is none that can be read. A field that is not known is passed over."""
    import msgspec  # not at the start of every command

    try:
        data = read_regular(path, LIMIT_BYTES)
        if json.loads(data)["schema_version"] != SCHEMA_VERSION:
            return None
        return msgspec.json.decode(data, type=Board)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
