"""The dry run is the dispatcher's first plan: the same reading of the box, through both, gives the same answers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusched.cli import main as front
from gpusched.common import simulation
from gpusched.common.errors import GpuschedError
from gpusched.config.settings import Settings
from gpusched.core.model import (
    MIB,
    Attempt,
    Device,
    DeviceProcess,
    JobRow,
    Reading,
    Requirements,
    Sample,
    nameless_uuid,
)
from gpusched.core.plan import observe
from gpusched.core.plan.availability import Criteria, OwnUse
from gpusched.core.plan.observe import Tenancy
from gpusched.core.plan.planner import make_plan
from gpusched.core.plan.snapshot import Claim, Resident, Snapshot, Start
from gpusched.dispatcher.device_book import DeviceBook
from gpusched.dispatcher.timers import Moment
from gpusched.host.gpus.claims import Claims, HeldClaim, Holder
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store import Store
from gpusched.lists.submit import SubmitOptions, Sweep, criteria, parse_sweep, read, submit
from gpusched.operations import queues
from gpusched.operations.run.dry_run import dry_run, first_reasons
from gpusched.operations.run.run import RunQueue
from tests.support import build
from tests.support.build import GIB
from tests.support.sample import stand_still

NOW = 1000.0
OURS, FOREIGN = 70, 80  # pids


@dataclass
class OneReading:
    """A source that answers with one reading."""

    reading: Reading
    requested: list[frozenset[str] | None] = field(default_factory=list)

    def request(self, uuids: frozenset[str] | None, now: float) -> None:
        self.requested.append(uuids)

    def poll(self, now: float) -> list[Reading]:
        return [self.reading]

    def deadline(self) -> float | None:
        return None

    def fileno(self) -> int | None:
        return None

    def trouble(self) -> GpuschedError | None:
        return None

    def job_environment(self) -> dict[str, str]:
        return {}

    def describe(self) -> str:
        return "one reading"

    def close(self) -> None:
        return None


class OthersClaims(Claims):
    """Claims where others hold some devices."""

    def __init__(self, holders: dict[str, str]) -> None:
        super().__init__("/nowhere")
        self.holders = holders

    def try_acquire(self, uuid: str, queue: str, now: float) -> HeldClaim | None:
        return None if uuid in self.holders else HeldClaim(self, uuid, "/nowhere", os.open(os.devnull, os.O_RDONLY))

    def holder(self, uuid: str, *, search: bool = True) -> Holder | None:
        user = self.holders.get(uuid)
        return None if user is None else Holder(user, None, "", None)


@dataclass(frozen=True)
class Box:
    """A box at one reading: its devices, who claims them, and which jobs of the queue are on them."""

    reading: Reading
    holders: dict[str, str]
    residents: dict[str, tuple[Resident, ...]]


sizes = st.sampled_from([None, 8 * GIB, 24 * GIB, 80 * GIB])
amounts = st.sampled_from([None, 0, 4, 499, 500, 3000, 20000])


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    devices, samples, holders, residents = [], [], {}, {}
    for n in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["shared", "exclusive_process", "prohibited", "mig", "nameless"]))
        uuid = {"mig": f"MIG-{n}", "nameless": nameless_uuid(n)}.get(kind, f"GPU-{n}")
        device = build.device(
            n,
            uuid=uuid,
            name=draw(st.sampled_from(["A100", "T4"])),
            total_bytes=draw(sizes),
            parent_uuid="GPU-9" if kind == "mig" else None,
            compute_mode=kind if kind in ("exclusive_process", "prohibited") else "default",
            group=draw(st.sampled_from(["", "a", "b"])),
            reserved_bytes=draw(st.sampled_from([0, 600 * MIB])),
        )
        use = draw(st.sampled_from(["free", "free", "claimed", "ours", "ours twice"]))
        pids = {"ours": [OURS], "ours twice": [OURS, OURS + 1]}.get(use, [])
        pids += [FOREIGN] * draw(st.booleans())
        used = draw(amounts)
        kinds = st.sampled_from(["C", "G"])
        processes = [DeviceProcess(p, draw(amounts) and 100 * MIB, draw(kinds)) for p in pids]
        sample = Sample(
            uuid,
            NOW,
            None if used is None else used * MIB,
            draw(st.sampled_from([None, device.total_bytes])),
            draw(st.sampled_from([None, tuple(processes)])),
            draw(st.sampled_from([None, 0.0, 0.5])),
            error="no access" if kind == "nameless" else draw(st.sampled_from([None, None, None, "lost"])),
        )
        devices.append(device)
        samples += [sample] * draw(st.sampled_from([1, 1, 1, 0]))
        if use == "claimed":
            holders[uuid] = "bo\x1b"
        elif use != "free":
            budgets = draw(st.lists(st.sampled_from([0, 2 * GIB]), min_size=1, max_size=2))
            residents[uuid] = tuple(Resident(90 + 2 * n + k, budget) for k, budget in enumerate(budgets))
    return Box(Reading(NOW, NOW, tuple(devices), tuple(samples)), holders, residents)


options = st.builds(
    lambda **values: SubmitOptions(Settings(**values, max_checks=1), b"/"),
    max_gpus=st.integers(1, 4),
    cpu_jobs=st.integers(1, 2),
    gpu_mem_threshold=st.sampled_from([1, 500, 30000]),
    free_when=st.sampled_from(["auto", "memory", "idle"]),
    allow_unreadable_memory=st.booleans(),
    max_jobs_per_gpu=st.integers(1, 3),
    gpu_strategy=st.sampled_from(["fill-first", "round-robin", "memory-aware"]),
    tag_max_gpus=st.sampled_from([None, "a=1"]),
)
needs = st.lists(
    st.builds(
        Requirements,
        gpus=st.integers(0, 2),
        mem_bytes=st.sampled_from([0, 0, 2 * GIB, 10 * GIB]),
        prio=st.sampled_from([0, 5]),
        gpu_model=st.sampled_from(["", "T4"]),
        tags=st.sampled_from([(), ("a",)]),
    ),
    min_size=1,
    max_size=5,
)


def pids_of_ours(box: Box, sample: Sample) -> frozenset[int]:
    listed = {process.pid for process in sample.processes or ()}
    return frozenset(listed & {OURS, OURS + 1}) if sample.uuid in box.residents else frozenset()


def attempts_on(box: Box) -> list[Attempt]:
    return [
        build.attempt(resident.job_id, uuid, mem_bytes=resident.budget_bytes)
        for uuid, residents in box.residents.items()
        for resident in residents
    ]


def waiting(needs: list[Requirements]) -> list[JobRow]:
    """The jobs in the order in which they start."""
    order = sorted(enumerate(needs, 1), key=lambda pair: -pair[1].prio)
    return [build.job(n, e.gpus, mem_bytes=e.mem_bytes, gpu_model=e.gpu_model, tags=e.tags) for n, e in order]


def dispatcher_says(box: Box, options: SubmitOptions, needs: list[Requirements]) -> dict[int, str]:
    """Where each job starts or why it waits, by what a dispatcher knows after its first reading."""
    chosen = options.settings
    uuids = [device.uuid for device in box.reading.devices]
    book = DeviceBook(OneReading(box.reading), OthersClaims(box.holders), "/q", box.reading)
    criteria = Criteria(chosen.gpu_mem_threshold * MIB, 1, chosen.free_when, chosen.allow_unreadable_memory)
    book.configure(uuids, criteria)
    moment = Moment(NOW, NOW)
    book.take_in(moment, lambda sample: OwnUse(pids_of_ours(box, sample), sample.uuid in box.residents))
    for uuid in box.holders:
        book.claim([uuid], moment)
        assert book.entries[uuid].claim is None
    snapshot = Snapshot(
        NOW,
        options.limits,
        tuple(entry.view(box.residents.get(uuid, ())) for uuid, entry in book.entries.items()),
        tuple(waiting(needs)),
        tuple(attempts_on(box)),
        threshold_bytes=chosen.gpu_mem_threshold * MIB,
        max_checks=1,
    )
    plan = make_plan(snapshot)
    labels = {device.uuid: book_label(device) for device in box.reading.devices}
    says = {job_id: reason.text.removeprefix("waits: ") for job_id, reason in plan.reasons.items()}
    for action in plan.actions:
        if isinstance(action, Claim | Start):
            says[action.job_id] = "starts on " + (", ".join(labels[uuid] for uuid in action.devices) or "the CPU")
    return says


def book_label(device: Device) -> str:
    return f"MIG {device.uuid[:12]}" if device.is_mig else f"GPU {device.index}"


def dry_run_says(box: Box, options: SubmitOptions, needs: list[Requirements]) -> dict[int, str]:
    """The same, by the dry run."""
    tenancies = {
        sample.uuid: Tenancy(
            box.residents.get(sample.uuid, ()),
            pids_of_ours(box, sample),
            refused=observe.claimed_by(box.holders[sample.uuid]) if sample.uuid in box.holders else "",
        )
        for sample in [*box.reading.samples, *(Sample(device.uuid, NOW) for device in box.reading.devices)][::-1]
    }
    board = observe.first_board(
        box.reading,
        [device.uuid for device in box.reading.devices],
        tenancies,
        criteria=criteria(options.settings, max_checks=1),
        limits=options.limits,
    )
    reasons = first_reasons(waiting(needs), attempts_on(box), board, NOW)
    return {job_id: text.removeprefix("waits: ") for job_id, text in reasons.items()}


@settings(max_examples=400, deadline=None)
@given(boxes(), options, needs)
def test_the_dry_run_is_the_first_plan_of_the_dispatcher(
    box: Box, options: SubmitOptions, needs: list[Requirements]
) -> None:
    assert dry_run_says(box, options, needs) == dispatcher_says(box, options, needs)


def test_two_jobs_with_a_budget_run_one_after_the_other_in_exclusive_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_still(monkeypatch, tmp_path)
    directory = simulation.locate("1", {simulation.ENV_DIRECTORY: str(tmp_path / "simulation")})
    simulation.change_keys(f"{directory}/gpu0/state", compute_mode="exclusive_process")
    monkeypatch.setenv(simulation.ENV_DIRECTORY, directory)
    (tmp_path / "list.txt").write_text("[mem=10G] true\n[mem=10G] true 2\n")
    assert front.run(["run", "list.txt", "--dry-run"]) == 0
    first, second = capsys.readouterr().out.partition("first:\n")[2].splitlines()
    assert first.endswith("starts on GPU 0")
    assert second.endswith("waits for a GPU with 10240 MiB (GPU 0: goes to a job before this one)")


def test_a_job_that_ran_out_of_memory_waits_in_the_dry_run_as_in_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_still(monkeypatch, tmp_path)
    monkeypatch.setenv(simulation.ENV_DIRECTORY, str(tmp_path / "simulation"))
    queue = QueueDir(str(tmp_path), str(tmp_path))
    options = SubmitOptions(Settings(simulate="1xA100-40GB"), b"/")
    jobs = read(b"[mem=10G] true\n", options, "list.txt")
    with Store(queue.database, create=True) as store:
        submit(store, jobs.specs, options, NOW)
        store.execute("UPDATE jobs SET mem_bytes = ?, not_before = ?", (60 * GIB, queues.now() + 20))
        assert dry_run(queue, jobs, options).reasons == {1: "waits: tried again in 20 s"}
        store.execute("UPDATE jobs SET not_before = 0")
        assert dry_run(queue, jobs, options).reasons[1].startswith("waits in vain: wants 61440 MiB on a GPU")
        store.execute("UPDATE jobs SET state = 'failed', mem_bytes = stated_mem_bytes, not_before = ?", (NOW,))
        assert dry_run(queue, jobs, options).reasons == {}
        assert dry_run(queue, jobs, replace(options, retry_failed=True)).reasons == {1: "starts on GPU 0"}


def test_a_sweep_beside_another_one_cancels_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_still(monkeypatch, tmp_path)
    monkeypatch.setenv(simulation.ENV_DIRECTORY, str(tmp_path / "simulation"))
    with RunQueue.for_file(Sweep("echo {n}", ("n=1",))) as queue:
        first = parse_sweep(Sweep("echo {n}", ("n=1",)), SubmitOptions(Settings(), b"/"))
        queue.submit(first, SubmitOptions(Settings(), os.fsencode(tmp_path)))
    assert front.run(["run", "-c", "echo {n}", "-p", "n=2", "--simulate", "1", "--dry-run"]) == 0
    assert "would add 1\n" in capsys.readouterr().out
