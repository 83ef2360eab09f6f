"""Run one contestant of bench.esd in its own process: do one thing and print its cost as JSON.

Loads PyTorch, and for the peer WeightWatcher; bench.esd itself loads neither.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

LAYERS = (4096, 1024)  # of the many layers of the checkpoint
BYTES = 2  # of a stored number


def seconds(what: Callable[[], object], times: int = 1) -> float:
    """Return the CPU seconds of all threads of a call, the median of `times`; other programs do not count."""
    results = []
    for _ in range(times):
        began = time.process_time()
        what()
        results.append(time.process_time() - began)
    return sorted(results)[len(results) // 2]


def peak_bytes() -> int:
    """Return the largest resident set that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def matrix(rows: int, columns: int) -> torch.Tensor:
    """Return a matrix like a trained layer: noise, and a strong part of low rank."""
    random = torch.Generator().manual_seed(rows + columns)
    low = min(32, rows, columns)
    strong = torch.randn(rows, low, generator=random) @ torch.randn(low, columns, generator=random)
    return torch.randn(rows, columns, generator=random) * 0.02 + strong * (0.05 / low)


def eigenvalues(count: int) -> Any:
    """Return eigenvalues like those of a trained layer: a bulk, and a heavy tail."""
    random = np.random.default_rng(count)
    bulk, tail = random.gamma(3.0, 0.2, count - count // 8), random.pareto(1.8, count // 8) + 0.5
    return np.sort(np.concatenate([bulk, tail]))


def ours_model(path: str) -> dict[str, float]:
    from gpusched.commands.esd import analyze

    analyze({"w": torch.randn(8, 8)})  # loads its modules, as the import of WeightWatcher does
    return {"seconds": seconds(lambda: analyze(path, embeddings=True)), "peak": peak_bytes()}


def theirs_model(path: str) -> dict[str, float]:
    import weightwatcher
    from transformers import AutoModel

    watcher = weightwatcher.WeightWatcher(model=AutoModel.from_pretrained(path), log_level="ERROR")
    return {"seconds": seconds(lambda: watcher.analyze(plot=False)), "peak": peak_bytes()}


def ours_numbers(shapes: Sequence[tuple[int, int]], count: int) -> dict[str, float]:
    from gpusched.commands.esd import analyze
    from gpusched.commands.esd.fit.power_law import fit

    from gpusched.esd.options import AnalysisOptions

    results = {}
    for rows, columns in shapes:
        weights = {"w": matrix(rows, columns)}
        results[f"{rows}x{columns}"] = seconds(partial(analyze, weights, parallel_gpu=False))
    evals = eigenvalues(count)
    options = AnalysisOptions(fix_fingers="DKS")
    alpha = fit(evals, options).alpha
    return {**results, "alpha": alpha, "fit": seconds(lambda: fit(evals, options), 15)}


def theirs_numbers(shapes: Sequence[tuple[int, int]], count: int) -> dict[str, float]:
    from weightwatcher.RMT_Util import svd_vals
    from weightwatcher.WW_powerlaw import WWFit

    results = {}
    for rows, columns in shapes:
        weights = matrix(rows, columns).double().numpy()
        results[f"{rows}x{columns}"] = seconds(partial(svd_vals, weights))
    evals = eigenvalues(count)
    return {**results, "alpha": float(WWFit(evals).alpha), "fit": seconds(lambda: WWFit(evals), 3)}


def make_checkpoint(directory: str, size: int, large: tuple[int, int], shards: int) -> dict[str, float]:
    """Write a sharded checkpoint in bfloat16: each shard has one large layer and many of the size LAYERS."""
    from safetensors.torch import save_file

    folder, small = Path(directory), tuple(min(a, b) for a, b in zip(LAYERS, large, strict=True))
    folder.mkdir(parents=True)
    index = {}
    each = max(1, int(size / shards / BYTES - large[0] * large[1]) // (small[0] * small[1]))
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        random = torch.Generator().manual_seed(shard)
        tensors = {
            f"layers.{shard}.{n}.weight": torch.randn(*shape, generator=random).to(torch.bfloat16)
            for n, shape in enumerate([large, *[small] * each])
        }
        save_file(tensors, folder / file)
        index.update(dict.fromkeys(tensors, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return {"layers": len(index)}


def ours_checkpoint(directory: str) -> dict[str, float]:
    """Run the stage on a checkpoint. Return its peak memory beyond the libraries, and the need of the largest layer."""
    from gpusched.commands.esd import analyze
    from gpusched.commands.esd.command_line import main
    from gpusched.commands.esd.read.sources import open_local

    analyze({"w": torch.randn(64, 64)})  # loads the libraries
    before = peak_bytes()
    with redirect_stdout(sys.stderr):
        took = seconds(lambda: main(["--model", directory, "--output-dir", f"{directory}-results"]))
    source = open_local(directory)
    largest = max(BYTES * info.elements + 8 * min(info.shape) ** 2 for info in source.infos())
    source.close()
    return {"seconds": took, "extra": peak_bytes() - before, "need": largest}


def ours_finetunes(directory: str, size: int, layers: int, models: int) -> dict[str, float]:
    """Analyse models that differ from their base in one layer each: one alone, and all with one cache of spectra."""
    from gpusched.commands.esd import analyze

    base = {f"layers.{n}.weight": matrix(size, size + n) for n in range(layers)}
    others = [{**base, f"layers.{n % layers}.weight": matrix(size + 1 + n, size)} for n in range(models)]
    alone = seconds(lambda: analyze(others[0]))
    together = seconds(lambda: [analyze(model, cache_dir=directory) for model in others])
    return {"alone": alone, "together": together}


CONTESTANTS: dict[str, Callable[..., dict[str, float]]] = {
    name: value
    for name, value in globals().items()
    if name.startswith(("ours_", "theirs_", "make_")) and callable(value)
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    results = CONTESTANTS[sys.argv[1]](*json.loads(sys.argv[2]))
    print("\n" + json.dumps(results))
