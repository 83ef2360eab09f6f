"""`gpusched devices`: who is on each GPU, whether it is free, who claimed it. Claims nothing and counts nothing."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from gpusched.cli.options import SettingsCommand, settings_options
from gpusched.common.errors import EXIT_OK, GpuschedError
from gpusched.config.settings import LoadedSettings, Settings
from gpusched.operations import queues, status

if TYPE_CHECKING:
    from gpusched.core.model import Device, Reading, Sample
    from gpusched.core.plan.board import Board, BoardDevice
    from gpusched.host.gpus.claims import Holder
    from gpusched.host.gpus.device_source import DeviceSource
    from gpusched.views.tables import Line


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One GPU: as a dispatcher of this user counts it (`board`), or as it was read here (`board` is None)."""

    item: BoardDevice
    board: Board | None
    queue: str
    holder: Holder | None


@click.command(
    cls=SettingsCommand,
    epilog="\b\nExamples:\n  gpusched devices\n  gpusched devices --watch\n  gpusched devices --simulate 4 --json",
)
@settings_options(
    "simulate", "claims_dir", "gpu_mem_threshold", "free_when", "allow_unreadable_memory", "poll_interval"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --watch one document a line.")
@click.option("--watch", is_flag=True, help="Show them again every poll interval, until Ctrl-C.")
def devices(loaded: LoadedSettings, as_json: bool, watch: bool) -> int:
    """Show the GPUs: who is on each, free or not, and why.

    The count of checks is that of your own dispatchers. Where none counts, the GPUs are read once here, and "free
    now" means free at that one look.
    """
    box = _Box(loaded.settings)
    try:
        if not watch:
            _show(box.look(), as_json=as_json)
            return EXIT_OK
        _watch(box, loaded.settings.poll_interval, as_json=as_json)
    except KeyboardInterrupt:
        pass
    finally:
        box.close()
    return EXIT_OK


def _show(found: list[DeviceReport], *, as_json: bool, indent: int | None = 2) -> None:
    if as_json:
        click.echo(json.dumps(_document(found), indent=indent))
        return
    from gpusched.views.tables import write

    write(sys.stdout, _page(found))


def _watch(box: _Box, interval_s: float, *, as_json: bool) -> None:
    from gpusched.views import tables
    from gpusched.views.area import Area, can_be_drawn_over

    area = Area(sys.stdout) if can_be_drawn_over(sys.stdout) and not as_json else None
    try:
        while True:
            found = box.look()
            if area is not None:
                stamp = time.strftime("%H:%M:%S", time.localtime(queues.now()))
                lines = [tables.line((f"{stamp}, every {interval_s:g} s, Ctrl-C ends", tables.DIM)), *_page(found)]
                width, height = area.size
                area.draw([tables.cut(line, width) for line in _within(lines, height - 1)])
            else:
                _show(found, as_json=as_json, indent=None)
                sys.stdout.flush()
            time.sleep(interval_s)
    finally:
        if area is not None:
            area.close(keep=True)


def _within(lines: list[Line], room: int) -> list[Line]:
    """As many lines as there is room for; the last one tells of those that there is none for."""
    from gpusched.views import tables

    if len(lines) <= room:
        return lines
    shown = lines[: max(0, room - 1)]
    return [*shown, tables.line((f"… and {len(lines) - len(shown)} more lines: the terminal is low", tables.DIM))]


# ---- looking ---------------------------------------------------------------------------------------


class _Box:
    """The GPUs of this box: read here, and as this user's dispatchers publish them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._source: DeviceSource | None = None
        self._trouble: GpuschedError | None = None

    def look(self) -> list[DeviceReport]:
        """Every GPU that is known of. Raises GpuschedError (exit 3) where there is none."""
        boards = _boards()
        found: dict[str, tuple[BoardDevice, Board | None, str]] = {}
        for board, name in reversed(boards):
            found.update({item.device.uuid: (item, board, name) for item in board.devices})
        for board, name in boards:  # the queue that has a job on it, or holds it, knows best
            for item in board.devices:
                if item.job_ids or item.view.held:
                    found[item.device.uuid] = (item, board, name)
        rows = list(found.values())
        reading = self._read(needed=not rows or self.settings.simulate is not None)
        if reading is not None:
            here = {device.uuid: self._judge(device, reading) for device in reading.devices}
            rows = [found.get(uuid, (item, None, "")) for uuid, item in here.items()]
            if not self.settings.simulate:
                rows += [row for uuid, row in found.items() if uuid not in here]
        claims = queues.claims(self.settings)
        return [
            DeviceReport(item, board, name, claims.holder(item.device.uuid) if claims is not None else None)
            for item, board, name in rows
        ]

    def _read(self, *, needed: bool) -> Reading | None:
        from gpusched.host.gpus.device_source import open_source, read_once

        if self._trouble is not None and not needed:
            return None
        try:
            if self._source is None:
                self._source = open_source(self.settings.simulate)
            return read_once(self._source)
        except GpuschedError as error:
            if needed:
                raise
            self._trouble = error  # the dispatchers' own boards have to do
            return None

    def _judge(self, device: Device, reading: Reading) -> BoardDevice:
        """The device at one look: free now, or why not."""
        from gpusched.core.plan import observe
        from gpusched.core.plan.board import BoardDevice

        sample = next((sample for sample in reading.samples if sample.uuid == device.uuid), None)
        known = observe.first_look(device, sample, observe.criteria(self.settings, max_checks=1))
        return BoardDevice(device, observe.device_view(device, known))

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


def _boards() -> list[tuple[Board, str]]:
    """What this user's dispatchers have published, with the name of each queue."""
    from gpusched.host.queue import queue_dir

    found = []
    places = queue_dir.known()
    for place in places:
        by = status.dispatching(place)
        if by.board is not None:
            found.append((by.board, queues.queue_name(place, places)))
    return found


# ---- telling ---------------------------------------------------------------------------------------


def _page(found: list[DeviceReport]) -> list[Line]:
    from gpusched.views import pages, report, tables

    now = queues.now()
    shown = []
    for each in found:
        checks = each.board.max_checks if each.board is not None else 1
        d = report.device_line(each.item, checks, of_queue=each.queue)
        if each.board is None and d.word == "free":
            d = replace(d, word="free now")
        mine = bool(each.item.job_ids) or each.item.view.held
        if each.holder is not None and not mine and (d.word == "claimed" or d.tone in ("good", "wait")):
            d = replace(d, word="claimed", detail="", tone="busy")
        shown.append(replace(d, claimed=_claim_text(each, now)))
    lines = pages.device_table(shown, full=True)
    boards = {each.queue: each.board for each in found if each.board is not None}
    if boards:
        counted = ", ".join(f"{name} (pid {board.pid})" for name, board in boards.items() if board is not None)
        lines.append(tables.line((f"counted by {counted}", tables.DIM)))
    if any(each.board is None for each in found):
        who = "no dispatcher of yours counts" + (" the others" if boards else "")
        lines.append(tables.line((f'{who}: "free now" is one look', tables.DIM)))
    return lines


def _claim_text(each: DeviceReport, now: float) -> str:
    """Who claimed it and since when; a label comes from another user."""
    from gpusched.common.text import clean
    from gpusched.views.words import moment

    holder = each.holder
    if holder is None:
        return ""
    since = ""
    if holder.since is not None and 0 < holder.since < 1e11:
        since = f" since {moment(holder.since, now)}"
    if each.board is not None and holder.pid == each.board.pid:
        return f"claimed{since}" if since else ""  # by the dispatcher that counts it, which is named below
    text = f"claimed by {clean(holder.user)}"
    if holder.pid is not None:
        text += f", pid {holder.pid}"
    text += f",{since}" if since else ""
    return text + (f", for {clean(holder.queue)[:200]}" if holder.queue else "")


def _document(found: list[DeviceReport]) -> dict[str, Any]:
    return {"schema_version": 1, "at": queues.now(), "devices": [_device_document(each) for each in found]}


def _device_document(each: DeviceReport) -> dict[str, Any]:
    from gpusched.common.text import clean

    device, known, sample = each.item.device, each.item.view.availability, each.item.view.availability.sample
    holder = each.holder
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "bus_id": device.bus_id,
        "state": known.state.value,
        "why": clean(each.item.view.refused or known.why),
        "checks": known.count if each.board is not None else None,
        "max_checks": each.board.max_checks if each.board is not None else None,
        "queue": each.queue or None,
        "jobs": list(each.item.job_ids),
        "read_at": known.at or None,
        **_sample_document(sample, each.item.view.total_bytes),
        "claim": None
        if holder is None
        else {
            "user": clean(holder.user),
            "pid": holder.pid,
            "queue": clean(holder.queue),
            "since": holder.since,
        },
    }


def _sample_document(sample: Sample | None, total: int | None) -> dict[str, Any]:
    from gpusched.common.text import clean

    if sample is None:
        return {"used_bytes": None, "total_bytes": total, "utilisation": None, "processes": None}
    return {
        "used_bytes": sample.used_bytes,
        "total_bytes": total,
        "utilisation": sample.utilisation,
        "processes": None
        if sample.processes is None
        else [
            {
                "pid": p.pid,
                "user": clean(p.user),
                "program": clean(p.program),
                "used_bytes": p.used_bytes,
                "kind": p.kind,
            }
            for p in sample.processes
        ],
    }
