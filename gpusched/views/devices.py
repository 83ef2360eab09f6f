"""The GPUs of a box -> the page of `gpusched devices`. Reads no clock and no file, and prints nothing."""

from __future__ import annotations

from collections.abc import Sequence

from gpusched.common.text import clean
from gpusched.core.plan.fairness import Ticket
from gpusched.views import pages, report, tables
from gpusched.views.tables import Line
from gpusched.views.values import BoxReport, DeviceReport
from gpusched.views.words import moment


def devices_page(box: BoxReport, now: float) -> list[Line]:
    reports = box.devices
    lines = pages.device_table([box_line(each, now) for each in reports], full=True)
    boards = {each.queue: each.board for each in reports if each.board is not None}
    if boards:
        counters = ", ".join(
            f"{name} (pid {board.pid}), last at {moment(board.at, now)}" for name, board in boards.items()
        )
        lines.append(tables.line((f"counted by the dispatcher of {counters}", tables.DIM)))
    if any(each.board is None for each in reports):
        others = "the other GPUs" if boards else "these GPUs"
        text = f'none of your dispatchers counts {others}; "free now" means free at a single check'
        lines.append(tables.line((text, tables.DIM)))
    return lines + [tables.line((ticket_text(ticket, reports, now), "")) for ticket in box.tickets]


def ticket_text(ticket: Ticket, reports: Sequence[DeviceReport], now: float) -> str:
    """Return who waits, for what and since when, and what is left to others meanwhile."""
    labels = {each.item.device.uuid: each.item.view.label for each in reports}
    gpus = "a GPU" if ticket.want.gpus == 1 else f"{ticket.want.gpus} GPUs"
    text = f"{clean(ticket.user)} waits for {gpus} since {moment(ticket.since_at, now)}"
    text += f", for {clean(ticket.queue)}" if ticket.queue else ""
    left = [f"{labels[uuid]} to {clean(user)}" for uuid, user in ticket.yields if uuid in labels]
    return text + (f", and leaves {', '.join(left)}" if left else "")


def box_line(each: DeviceReport, now: float) -> report.DeviceLine:
    """Return the line of a GPU of the box, with its claim."""
    checks = each.board.max_checks if each.board is not None else 1
    line = report.device_line(each.item, checks, of_queue=each.queue)
    if each.board is None and line.word == "free":
        line = line._replace(word="free now")
    mine = bool(each.item.job_ids) or each.item.view.held
    if each.claim is not None and not mine and (line.word == "claimed" or line.tone in ("good", "wait")):
        line = line._replace(word="claimed", detail="", tone="busy")
    text = _claim_text(each, now)
    return line._replace(claimed=text.removeprefix("claimed").lstrip(", ") if line.word == "claimed" else text)


def _claim_text(each: DeviceReport, now: float) -> str:
    """Return whose claim it is and since when."""
    claim = each.claim
    if claim is None:
        return ""
    is_known = each.board is not None and claim.pid == each.board.pid  # named below the table
    text = "claimed" if is_known else f"claimed by {claim.user}"
    if claim.queue and not is_known:
        text += f" for {claim.queue[:200]}"
    if claim.since is not None and 0 < claim.since < 1e11:
        text += f", since {moment(claim.since, now)}"
    return text if claim.pid is None or is_known else f"{text}, pid {claim.pid}"
