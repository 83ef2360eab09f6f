"""Settings, readings and claims -> the box as the plan sees it. Decides nothing.

The dispatcher, `run --dry-run`, `devices`, `status` and `explain` all build their views here, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpusched.common.text import clean
from gpusched.core.model import Attempt, AttemptRow, Device, JobRow, Reading, Sample
from gpusched.core.plan.availability import Availability, Criteria, OwnUse, fold
from gpusched.core.plan.board import Board, BoardDevice
from gpusched.core.plan.snapshot import Claim, DeviceView, Limits, Plan, Resident, Snapshot, Start

QUEUE_LENGTH = 200  # of the text of another user that says what a claim is for


def first_look(
    device: Device,
    sample: Sample | None,
    criteria: Criteria,
    own: OwnUse = OwnUse(),  # noqa: B008 (frozen)
) -> Availability:
    """Return the availability of a device that was read once, or never where `sample` is None."""
    unread = Availability(device.uuid)
    return unread if sample is None else fold(unread, device, sample, own, criteria=criteria)


def device_view(device: Device, availability: Availability) -> DeviceView:
    """Return an unclaimed device without jobs of ours, as the plan sees it."""
    sample = availability.sample
    return DeviceView(
        availability,
        total_bytes=sample.total_bytes if sample is not None and sample.total_bytes else device.total_bytes,
        label=device_label(device),
        name=device.name,
        group=device.group,
        alone=device.is_mig or device.compute_mode == "exclusive_process",
        reserved_bytes=device.reserved_bytes,
    )


def device_label(device: Device) -> str:
    """Return the name of a device in a sentence: "GPU 3", or "MIG " and the beginning of its UUID."""
    return f"MIG {device.uuid[:12]}" if device.is_mig else f"GPU {device.index}"


@dataclass(frozen=True, slots=True)
class Tenancy:
    """The use of one device at its first reading, beside what the reading says."""

    residents: tuple[Resident, ...] = ()  # jobs of this queue
    pids: frozenset[int] = frozenset()  # of these jobs, as the reading lists them
    held: bool = False  # claimed by the dispatcher of this queue
    refused: str = ""  # why a claim would be refused


UNUSED = Tenancy()


def first_board(
    reading: Reading,
    uuids: Sequence[str],
    tenancies: Mapping[str, Tenancy],
    *,
    criteria: Criteria,
    limits: Limits,
) -> Board:
    """Return the board of a dispatcher that has taken in this complete reading, and none before.

    `uuids` are the allowed devices in order of preference; a device without a tenancy is unused.
    """
    devices = {device.uuid: device for device in reading.devices}
    samples = {sample.uuid: sample for sample in reading.samples}
    items = []
    for uuid in uuids:
        use, device = tenancies.get(uuid, UNUSED), devices[uuid]
        known = first_look(device, samples.get(uuid), criteria, OwnUse(use.pids, bool(use.residents)))
        view = device_view(device, known)
        view = replace(view, held=use.held, looked=use.held, refused=use.refused, residents=use.residents)
        items.append(BoardDevice(device, view))
    return Board(
        at=max((sample.at for sample in reading.samples), default=0.0),
        pid=0,
        source="",
        limits=limits,
        max_checks=criteria.max_checks,
        threshold_bytes=criteria.threshold_bytes,
        devices=tuple(items),
    )


def claimed_by(user: str | None, queue: str = "") -> str:
    """Return why a claim is refused. `user`: its holder; None where nobody is seen to hold it. `queue`: for what."""
    if user is None:
        return "claimed by somebody just now"
    whose = f"{clean(user)}'s" if user else "your"
    return f"claimed by {whose} gpusched" + (f" for {clean(queue[:QUEUE_LENGTH])}" if queue else "")


def open_attempt(job: JobRow, row: AttemptRow) -> Attempt:
    """Return an open attempt of the queue's database as the plan sees it, as far as the database knows it."""
    return Attempt(
        job,
        row.number,
        tuple(device.uuid for device in row.devices),
        cancel_requested=job.cancel_requested_at is not None,
        started_at=row.started_at,
    )


def snapshot(
    board: Board,
    now: float,
    *,
    waiting: Iterable[JobRow] = (),
    attempts: Iterable[Attempt] = (),
    stop_all: bool = False,
    hand_back: bool = False,
) -> Snapshot:
    """Return all that the plan knows: the board, and the jobs of the queue."""
    return Snapshot(
        now=now,
        limits=board.limits,
        devices=tuple(item.view for item in board.devices),
        waiting=tuple(waiting),
        attempts=tuple(attempts),
        closed_to_starts=board.closed,
        gpus_closed=board.gpus_closed,
        stop_all=stop_all,
        hand_back=hand_back,
        threshold_bytes=board.threshold_bytes,
        max_checks=board.max_checks,
        sharing=board.sharing,
        waited_since=board.waited_since,
        learned=board.learned,
    )


def starts(plan: Plan) -> dict[int, tuple[str, ...]]:
    """Return, by job id, the devices on which the plan starts each job or that it claims for it."""
    return {action.job_id: action.devices for action in plan.actions if isinstance(action, Claim | Start)}


def start_labels(plan: Plan, devices: Iterable[DeviceView]) -> dict[int, str]:
    """Return where each job of the plan starts, for people, by job id: "GPU 0, GPU 3" or "the CPU"."""
    labels = {view.uuid: view.label for view in devices}
    return {job_id: ", ".join(labels[uuid] for uuid in uuids) or "the CPU" for job_id, uuids in starts(plan).items()}
