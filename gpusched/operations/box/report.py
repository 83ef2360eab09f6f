"""The GPUs of this box: as this user's dispatchers count them, or read once. Claims nothing and counts nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from gpusched.common.errors import GpuschedError
from gpusched.common.text import clean
from gpusched.config.settings import Settings
from gpusched.core.model import Device, Reading
from gpusched.core.plan import observe
from gpusched.core.plan.board import Board, BoardDevice, device_document
from gpusched.core.plan.fairness import Ticket
from gpusched.host.gpus.claims import Claims
from gpusched.host.gpus.tickets import read_tickets
from gpusched.lists.submit import criteria
from gpusched.operations import queues
from gpusched.operations.box.devices import BoxDevices
from gpusched.operations.queues import read_dispatcher
from gpusched.views.values import BoxReport, ClaimLabel, DeviceReport

NamedBoard = tuple[Board, str]  # with the name of its queue
_Counted = tuple[BoardDevice, Board | None, str]  # a device, the board that counts its checks, and its queue


def read_box(devices: BoxDevices, settings: Settings) -> BoxReport:
    """Return every GPU that is known, or those of the simulation that the settings name; never both kinds.

    Raises GpuschedError (exit 3) if there is none.
    """
    counted = _count(_published_boards())
    real = [row for row in counted.values() if not row[0].device.is_simulated]
    try:
        reading = devices.read()
    except GpuschedError:
        if not real or settings.simulate is not None:
            raise
        rows = real
    else:
        here = {device.uuid: _first_look(device, reading, settings) for device in reading.devices}
        rows = [counted.get(uuid, (item, None, "")) for uuid, item in here.items()]
        if not any(device.is_simulated for device in reading.devices):
            rows += [row for row in real if row[0].device.uuid not in here]
    return _box_report(rows, settings)


def read_boards(boards: Iterable[NamedBoard], settings: Settings) -> BoxReport:
    """Return the GPUs that these dispatchers have published, in the order of their indices."""
    rows = sorted(_count(boards).values(), key=lambda row: (row[0].device.index, row[0].device.uuid))
    return _box_report(rows, settings)


def _count(boards: Iterable[NamedBoard]) -> dict[str, _Counted]:
    """Return the devices of these boards, each once."""
    counted: dict[str, _Counted] = {}
    for board, name in boards:
        for item in board.devices:
            # the queue that has a job on it, or holds it, knows best; then the newest
            if item.device.uuid not in counted or item.job_ids or item.view.held:
                counted[item.device.uuid] = (item, board, name)
    return counted


def _box_report(rows: Sequence[_Counted], settings: Settings) -> BoxReport:
    """Return these devices with their claims, and the tickets of those who wait for some of them."""
    claims = Claims(settings.claims_dir)
    uuids = {row[0].device.uuid for row in rows}
    tickets = [ticket for ticket in read_tickets(claims) if uuids & {*ticket.want.devices}]
    return BoxReport([_report(claims, *row) for row in rows], sorted(tickets, key=lambda ticket: ticket.since_at))


def claims_weakness(settings: Settings) -> str:
    """Return what a mere user can do to the claims of others, and the remedy; empty if nobody can."""
    return Claims(settings.claims_dir).weakness()


def _first_look(device: Device, reading: Reading, settings: Settings) -> BoardDevice:
    sample = next((sample for sample in reading.samples if sample.uuid == device.uuid), None)
    known = observe.first_look(device, sample, criteria(settings, max_checks=1))
    return BoardDevice(device, observe.device_view(device, known))


def _report(claims: Claims, item: BoardDevice, board: Board | None, name: str) -> DeviceReport:
    label = None
    if (holder := claims.holder(item.device.uuid)) is not None:
        label = ClaimLabel(clean(holder.user), holder.pid, clean(holder.queue), holder.since)
    elif board is None:
        item = replace(item, view=replace(item.view, refused=claims.obstacle(item.device.uuid)))
    return DeviceReport(item, board, name, label)


def _published_boards() -> list[NamedBoard]:
    """Return what this user's dispatchers have published, each with the name of its queue."""
    known = queues.known_queues()
    boards = [(read_dispatcher(queue_dir).board, queue_dir) for queue_dir in known]
    return [(board, queues.queue_name(queue_dir, known)) for board, queue_dir in boards if board is not None]


def box_document(box: BoxReport) -> dict[str, Any]:
    """Return the GPUs, and who waits for them, for programs."""
    tickets = [_ticket_document(ticket) for ticket in box.tickets]
    return {"at": queues.now(), "devices": [_document(report) for report in box.devices], "tickets": tickets}


def _ticket_document(ticket: Ticket) -> dict[str, Any]:
    return {
        "user": clean(ticket.user),
        "queue": clean(ticket.queue),
        "since": ticket.since_at,
        "gpus": ticket.want.gpus,
        "devices": [clean(uuid) for uuid in ticket.want.devices],
        "leaves": [{"uuid": clean(uuid), "to": clean(user)} for uuid, user in ticket.yields],
    }


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
        **{name: getattr(sample, name, None) for name in ("used_bytes", "utilisation", "temperature_c", "power_w")},
        "processes": processes,
        "claim": report.claim and report.claim._asdict(),
    }
