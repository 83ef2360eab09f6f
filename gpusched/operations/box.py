"""The GPUs of this box: as this user's dispatchers count them, or read once. Claims nothing and counts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.text import clean
from gpusched.config.settings import Settings
from gpusched.core.model import Device, Reading
from gpusched.core.plan import observe
from gpusched.core.plan.board import Board, BoardDevice
from gpusched.host.gpus import device_source
from gpusched.host.gpus.claims import Claims
from gpusched.host.gpus.device_source import DeviceSource
from gpusched.operations import queues
from gpusched.operations.dispatchers import read_dispatcher
from gpusched.operations.status import device_document
from gpusched.views.values import ClaimLabel, DeviceReport


class BoxReader:
    """A reader of the GPUs of this box. Use it as a context manager: it keeps the driver open between readings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._source: DeviceSource | None = None

    def __enter__(self) -> BoxReader:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._source is not None:
            self._source.close()

    def read(self) -> list[DeviceReport]:
        """Return every GPU that is known. Raises GpuschedError (exit 3) if there is none."""
        counted: dict[str, tuple[BoardDevice, Board | None, str]] = {}
        for board, name in _published_boards():
            for item in board.devices:
                # the queue that has a job on it, or holds it, knows best; then the newest
                if item.device.uuid not in counted or item.job_ids or item.view.held:
                    counted[item.device.uuid] = (item, board, name)
        rows = list(counted.values())
        reading = self._read(needed=not rows or self._settings.simulate is not None)
        if reading is not None:
            here = {device.uuid: self._first_look(device, reading) for device in reading.devices}
            rows = [counted.get(uuid, (item, None, "")) for uuid, item in here.items()]
            if not self._settings.simulate:
                rows += [row for uuid, row in counted.items() if uuid not in here]
        claims = queues.claims(self._settings)
        return [DeviceReport(item, board, name, _label(claims, item.device.uuid)) for item, board, name in rows]

    def _read(self, *, needed: bool) -> Reading | None:
        """Return a reading; None if there is none and the boards of the dispatchers do without it."""
        try:
            if self._source is None:
                self._source = device_source.open_source(self._settings.simulate)
            return device_source.read_once(self._source)
        except GpuschedError:
            if needed:
                raise
            return None

    def _first_look(self, device: Device, reading: Reading) -> BoardDevice:
        sample = next((sample for sample in reading.samples if sample.uuid == device.uuid), None)
        known = observe.first_look(device, sample, observe.criteria(self._settings, max_checks=1))
        return BoardDevice(device, observe.device_view(device, known))


def _label(claims: Claims | None, uuid: str) -> ClaimLabel | None:
    holder = claims.holder(uuid) if claims is not None else None
    if holder is None:
        return None
    return ClaimLabel(clean(holder.user), holder.pid, clean(holder.queue), holder.since)


def _published_boards() -> list[tuple[Board, str]]:
    """Return what this user's dispatchers have published, each with the name of its queue."""
    known = queues.known_queues()
    boards = [(read_dispatcher(queue_dir).board, queue_dir) for queue_dir in known]
    return [(board, queues.queue_name(queue_dir, known)) for board, queue_dir in boards if board is not None]


def box_document(reports: Sequence[DeviceReport]) -> dict[str, Any]:
    """Return the GPUs for programs."""
    return {"schema_version": 1, "at": queues.now(), "devices": [_document(report) for report in reports]}


def _document(report: DeviceReport) -> dict[str, Any]:
    known = report.item.view.availability
    sample = known.sample
    processes = None if sample is None or sample.processes is None else [asdict(p) for p in sample.processes]
    for process in processes or ():
        process |= {"user": clean(process["user"]), "program": clean(process["program"])}
    return {
        **device_document(report.item, report.board),
        "bus_id": report.item.device.bus_id,
        "queue": report.queue or None,
        "read_at": known.at or None,
        "used_bytes": sample.used_bytes if sample is not None else None,
        "total_bytes": report.item.view.total_bytes,
        "utilisation": sample.utilisation if sample is not None else None,
        "processes": processes,
        "claim": asdict(report.claim) if report.claim is not None else None,
    }
