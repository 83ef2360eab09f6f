"""The GPUs of this box, for one command: opened once, compared with the jobs, closed at its end. Claims nothing."""

from __future__ import annotations

import os
import time

from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings
from gpusched.core.model import Device, Reading
from gpusched.core.plan import selection
from gpusched.host.gpus import device_source
from gpusched.host.gpus.claims import Claims
from gpusched.host.gpus.device_source import DeviceSource, NoSource
from gpusched.host.queue import published
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.lists.jobfile import JobFile
from gpusched.lists.submit import SubmitOptions, refuse_impossible

RESERVATION = "a reservation"  # as its claims tell others
UNSET = "unset CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES"  # which a reservation has set in a shell


class BoxDevices:
    """The GPUs that the settings name, opened and read at first need. A context manager that closes them.

    `gpus` is the number of GPUs that each job needs, if not that of the settings. Opening raises GpuschedError (exit 3)
    where there are none, unless the jobs need none.
    """

    def __init__(self, settings: Settings, gpus: int | None = None) -> None:
        self._settings = settings
        self._gpus = settings.gpus_per_job if gpus is None else gpus
        self._opened: tuple[DeviceSource, Reading] | None = None

    def __enter__(self) -> BoxDevices:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    @property
    def source(self) -> DeviceSource:
        return self._open()[0]

    @property
    def first(self) -> Reading:
        """The complete reading that was made when they were opened."""
        return self._open()[1]

    def read(self) -> Reading:
        """Read them anew."""
        return device_source.read_once(self.source) if self.is_open else self.first

    def close(self) -> None:
        """Close the source of the readings, if it is open."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def look(self, queue_dir: QueueDir) -> tuple[Device, ...] | None:
        """Return the devices of the box; where a dispatcher works on the queue, those that it has published, if any."""
        if queue_dir.dispatcher() is not None:
            board = published.read_board(queue_dir)
            return tuple(item.device for item in board.devices) if board else None
        return self.first.devices

    def check(self, jobs: JobFile, options: SubmitOptions, queue_dir: QueueDir) -> None:
        """Raise GpuschedError for jobs that the devices can never serve, as far as the devices are known now."""
        devices = self.look(queue_dir)
        if devices is not None:
            check_jobs(jobs, options, devices)

    def _open(self) -> tuple[DeviceSource, Reading]:
        if self._opened is None:
            source = device_source.open_source(self._settings.simulate)
            self._opened = source, Reading(time.time(), time.time())  # so that close() finds it, whatever comes
            try:
                self._opened = source, device_source.read_once(source)
            except GpuschedError:
                self.close()
                if self._gpus:
                    raise
                self._opened = NoSource(), Reading(time.time(), time.time())
        return self._opened


def open_devices(settings: Settings, gpus: int | None = None) -> BoxDevices:
    """Return the GPUs that the settings name; use it in a `with`."""
    return BoxDevices(settings, gpus)


def check_devices(settings: Settings, devices: tuple[Device, ...], gpus: int | None = None) -> selection.Selection:
    """Return the allowed devices.

    Raises GpuschedError for what this box can never serve, for a nested run, and in the shell of a reservation.
    """
    gpus = settings.gpus_per_job if gpus is None else gpus
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = selection.select(
        devices,
        wanted=settings.gpu_list,
        outer_mask=mask,
        outer_order=os.environ.get("CUDA_DEVICE_ORDER"),
        gpus_per_job=gpus,
        max_gpus=settings.max_gpus,
    )
    job, held = os.environ.get("GPUSCHED_JOB_ID"), os.environ.get("GPUSCHED_DEVICES", "")
    if job and gpus and set(held.split(",")) & set(chosen.uuids):
        raise GpuschedError(
            f"this is job {job} of another gpusched, and its GPU is the one that you ask for",
            where=os.environ.get("GPUSCHED_QUEUE", ""),
            hint="the outer one holds that GPU until this job ends; run this outside of it, or jobs with [gpus=0]",
        )
    if mask is not None and chosen.uuids and all(_is_reserved(settings, uuid) for uuid in chosen.uuids):
        raise GpuschedError(
            f"CUDA_VISIBLE_DEVICES={mask} allows only what your reservation holds: gpusched takes none of it",
            where="environment",
            hint=f"start on it without gpusched; for other GPUs: {UNSET}",
        )
    return chosen


def _is_reserved(settings: Settings, uuid: str) -> bool:
    """Return True if a reservation of this user holds a device."""
    holder = Claims(settings.claims_dir).holder(uuid, search=False)
    return holder is not None and holder.uid == os.getuid() and holder.queue.startswith(RESERVATION)


def check_jobs(jobs: JobFile, options: SubmitOptions, devices: tuple[Device, ...]) -> None:
    """Raise GpuschedError for jobs that these devices can never serve, by the options or by their own attributes."""
    chosen = check_devices(options.settings, devices, options.gpus_wanted(jobs.specs))
    refuse_impossible(jobs.specs, options, [device for device in devices if device.uuid in chosen.uuids])
