"""The state of a queue and its GPUs as text for Prometheus: names and base units by its conventions. Pure; no command.

The counters are those of the jobs that the queue still has: `clean` lets them begin anew, as a restart does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpusched.core.model import JobState
from gpusched.core.plan.availability import DeviceState
from gpusched.core.plan.board import Board, BoardDevice

Labels = Mapping[str, str]
Values = Iterable[tuple[Labels, float | None]]  # None: not known, left out
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """The numbers of a queue that are no state of its GPUs."""

    jobs: Mapping[JobState, int]
    waits: Mapping[str, float]  # queued and held jobs by what they wait for
    attempts: Mapping[str, int]  # those that have ended, by outcome
    gpu_s: float  # of these, each with its time on each of its GPUs
    energy_j: float


def exposition(queue: str, board: Board | None, totals: QueueTotals, *, version: str, is_up: bool) -> str:
    """Return all metrics of a queue; `queue` is its path, `board` what its dispatcher has published last."""
    one: Labels = {"queue": queue}
    devices = board.devices if board is not None and is_up else ()
    families: list[tuple[str, str, str, Values]] = [
        ("build_info", "gauge", "Version of gpusched.", [({**one, "version": version}, 1)]),
        ("dispatcher_up", "gauge", "1 while a dispatcher works on the queue.", [(one, is_up)]),
        ("poll_timestamp_seconds", "gauge", "Time of the last look at the GPUs.", [(one, board.at if board else None)]),
        ("jobs", "gauge", "Jobs by state.", [({**one, "state": s.value}, n) for s, n in totals.jobs.items()]),
        ("waiting_jobs", "gauge", "Jobs by what they wait for.", _by(one, "reason", totals.waits)),
        ("attempts_total", "counter", "Attempts that have ended.", _by(one, "outcome", totals.attempts)),
        ("gpu_seconds_total", "counter", "Time of ended attempts on each of their GPUs.", [(one, totals.gpu_s)]),
        ("energy_joules_total", "counter", "Energy of the GPUs of ended attempts.", [(one, totals.energy_j)]),
        *_of_devices(one, devices),
    ]
    return "".join(_family(f"gpusched_{name}", kind, help, values) for name, kind, help, values in families)


def _of_devices(one: Labels, devices: Iterable[BoardDevice]) -> Iterable[tuple[str, str, str, Values]]:
    rows = [({**one, "gpu": str(d.device.index), "uuid": d.device.uuid}, d.view, d.view.availability) for d in devices]
    samples = [(labels, known.sample) for labels, _, known in rows if known.sample is not None]
    states = [({**labels, "state": s.value}, known.state is s) for labels, _, known in rows for s in DeviceState]
    for name, text, values in (
        ("memory_used_bytes", "Memory in use.", [(labels, sample.used_bytes) for labels, sample in samples]),
        ("memory_total_bytes", "Memory of the board.", [(labels, view.total_bytes) for labels, view, _ in rows]),
        (
            "memory_foreign_bytes",
            "Memory used by others.",
            [(labels, known.foreign_bytes) for labels, _, known in rows],
        ),
        ("utilization_ratio", "Utilisation, 0 to 1.", [(labels, sample.utilisation) for labels, sample in samples]),
        (
            "energy_joules_total",
            "Running total of the board.",
            [(labels, sample.energy_j) for labels, sample in samples],
        ),
        ("jobs", "Jobs of the queue on it.", [(labels, len(view.residents)) for labels, view, _ in rows]),
        ("free_checks", "Checks in a row that found it free.", [(labels, known.count) for labels, _, known in rows]),
        ("state", "1 for the state in which it is.", states),
    ):
        yield f"gpu_{name}", "counter" if name.endswith("_total") else "gauge", text, values


def _by(one: Labels, label: str, numbers: Mapping[str, float]) -> Values:
    return [({**one, label: key}, number) for key, number in sorted(numbers.items())]


def _family(name: str, kind: str, help: str, values: Values) -> str:
    """Return one metric; nothing where it has no value."""
    lines = []
    for labels, value in values:
        if value is not None:
            pairs = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
            lines.append(f"{name}{{{pairs}}} {float(value):.15g}\n")
    return f"# HELP {name} {help}\n# TYPE {name} {kind}\n{''.join(lines)}" if lines else ""
