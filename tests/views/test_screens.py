"""Golden screens of the live view: four queues at four sizes of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gpusched.core.model import DeviceProcess, DeviceUse, JobState, RunningView
from gpusched.core.plan.availability import RUNS_OURS, DeviceState
from gpusched.core.plan.board import Board, BoardDevice, Frame, Pace
from gpusched.core.plan.snapshot import DeviceView, Limits, Resident
from gpusched.views.report import running_line, shorten_commands
from gpusched.views.tables import cut
from gpusched.views.terminal.layout import Picture, lay_out
from tests.support import build
from tests.support.golden import golden
from tests.support.sample import NAME, NOW, gpu, view

SIZES = [(80, 24), (100, 30), (120, 40), (200, 50)]
RUNNING = DeviceState.RUNNING


def job(
    number: int, *gpus: int, command: str = "", done: int | None = None, tail: str = "", **fields: object
) -> tuple[RunningView, str]:
    """Return a running job, and the last line of its log."""
    progress = "" if done is None else f'{{"done": {done}, "total": 100, "unit": "steps", "message": "loss 0.{done}"}}'
    row = build.job_row(number, command=command.encode(), line=number, state=JobState.RUNNING, **fields)
    uses = tuple(DeviceUse(gpu(n).uuid, n, NAME) for n in gpus)
    attempt = build.attempt_row(number, started_at=NOW - 60 * number, devices=uses, progress=progress)
    return RunningView(row, attempt), tail


def screen(
    jobs: Sequence[tuple[RunningView, str]],
    counts: dict[JobState, int],
    devices: dict[int, DeviceView] | None = None,
    reason: str = "",
) -> Frame:
    """Return a frame of eight GPUs: those of the running jobs, others free unless `devices` says more."""
    on: dict[int, list[int]] = {n: [] for n in range(8)}
    for each, _ in jobs:
        for use in each.attempt.devices:
            on[use.index].append(each.job.id)
    views = []
    for n, ids in on.items():
        known = (
            view(n, RUNNING, RUNS_OURS, used=9000 * len(ids), util=0.2 * len(ids)) if ids else view(n, DeviceState.FREE)
        )
        residents = tuple(Resident(job_id, 0) for job_id in ids)
        views.append(replace((devices or {}).get(n, known), residents=residents))
    items = tuple(BoardDevice(gpu(n), each) for n, each in enumerate(views))
    return Frame(
        at=NOW,
        queue="/work/gpusched-runs/sweep",
        started_at=NOW - 3725,
        board=Board(NOW - 1, 4242, "NVML", Limits(8, 2), 10, 500 << 20, items),
        counts=dict.fromkeys(JobState, 0) | counts | {JobState.RUNNING: len(jobs)},
        running=tuple(each for each, _ in jobs),
        reason=reason,
        pace=Pace(counts.get(JobState.SUCCEEDED, 0), 1000.0 * counts.get(JobState.SUCCEEDED, 0), NOW - 3725),
        groups=(),
        closing="",
    )


Scene = tuple[Frame, dict[int, str]]


def seven_jobs() -> Scene:
    jobs = [
        job(
            n, n - 1, command=f"python train.py --seed {n} --out runs/{n}", done=9 * n, tail=f"step {n}: loss 0.{9 * n}"
        )
        for n in range(1, 8)
    ]
    return screen(jobs, {JobState.SUCCEEDED: 3}), {each.job.id: tail for each, tail in jobs}


def forty_jobs() -> Scene:
    """A colleague on GPU 3, a GPU that is being counted, a job that has failed, tags and priorities."""
    jobs = [
        job(
            n + 10,
            n,
            command=f"python train.py --lr 0.{n}",
            tail=f"epoch {n}",
            name=f"lr-{n}",
            tags=("vit",),
            prio=n % 2,
        )
        for n in (0, 1, 2, 4, 5)
    ]
    processes = (DeviceProcess(51, 9216 << 20, "C", "bo", "python"),)
    busy = view(
        3, DeviceState.BUSY, "9216 MiB in use by bo's python (pid 51), threshold 500 MiB", used=9216, who=processes
    )
    devices = {3: busy, 6: view(6, DeviceState.CHECKING, "free at 4 of 10 checks", count=4)}
    devices[7] = view(7, DeviceState.FREE, refused="claimed by cy's gpusched")
    reason = (
        "job 16 (lr-6) waits for a GPU (5 GPUs run your jobs, GPU 3 is used by bo (9.0 GiB, python), "
        "GPU 6: free at 4 of 10 checks, GPU 7: claimed by cy's gpusched)"
    )
    counts = {JobState.QUEUED: 24, JobState.SUCCEEDED: 10, JobState.FAILED: 1}
    return screen(jobs, counts, devices, reason), {each.job.id: tail for each, tail in jobs}


def packed_jobs() -> Scene:
    jobs = [
        job(n + 1, n // 4, command=f"[mem=18G] python eval.py --part {n} --model m{n % 5}", done=3 * n + 1)
        for n in range(32)
    ]
    return screen(jobs, {JobState.QUEUED: 8}, reason="job 33 waits for a GPU (8 GPUs: 4 jobs share it)"), {}


def esd_models() -> Scene:
    command = "/v/bin/python -m gpusched.commands.esd --model {} --output /home/ann/results --device cuda"
    jobs = [
        job(n + 101, n, command=command.format(f"tiny/model-{n}"), name=f"tiny/model-{n}", done=10 + n, tags=("esd",))
        for n in range(8)
    ]
    reason = "job 109 (tiny/model-8) waits for a GPU (8 GPUs run your jobs)"
    return screen(jobs, {JobState.QUEUED: 192, JobState.SUCCEEDED: 98, JobState.FAILED: 2}, reason=reason), {}


def drawn(scene: Scene, width: int, height: int) -> list[str]:
    frame, tails = scene
    running = shorten_commands([running_line(each, NOW, tails.get(each.job.id, "")) for each in frame.running])
    lines = [cut(line, width).plain for line in lay_out(Picture("sweep", frame, running, ()), width, height)]
    assert len(lines) < height and all(len(line) <= width for line in lines)
    return lines


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("scene", [seven_jobs, forty_jobs, packed_jobs, esd_models])
def test_a_screen(scene: Callable[[], Scene], width: int, height: int) -> None:
    lines = drawn(scene(), width, height)
    golden(f"screen-{scene.__name__.replace('_', '-')}-{width}x{height}", "\n".join(lines) + "\n")


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("scene", [seven_jobs, packed_jobs, esd_models])
def test_progress_and_the_memory_of_each_gpu_are_there_at_every_size(
    scene: Callable[[], Scene], width: int, height: int
) -> None:
    lines = drawn(scene(), width, height)
    at = next(n for n, text in enumerate(lines) if "MEMORY" in text)
    assert [text.split()[0] for text in lines[at + 1 : at + 9]] == list("01234567")
    at = next(n for n, text in enumerate(lines) if text.startswith("JOB"))
    bars = [text for text in lines[at + 1 :] if "━" in text and "%" in text]
    assert len(bars) >= min(len(scene()[0].running), 7)
