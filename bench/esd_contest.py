"""One contestant of bench.esd, in a process of its own: does one thing and prints what it took, as JSON.

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
    """CPU seconds of all threads that it takes, the middle of `times`: other work on the machine does not count."""
    found = []
    for _ in range(times):
        began = time.process_time()
        what()
        found.append(time.process_time() - began)
    return sorted(found)[len(found) // 2]


def peak_bytes() -> int:
    """The largest resident set that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def matrix(rows: int, columns: int) -> torch.Tensor:
    """Like a trained layer: noise, and a strong part of low rank."""
    random = torch.Generator().manual_seed(rows + columns)
    low = min(32, rows, columns)
    strong = torch.randn(rows, low, generator=random) @ torch.randn(low, columns, generator=random)
    return torch.randn(rows, columns, generator=random) * 0.02 + strong * (0.05 / low)


def eigenvalues(count: int) -> Any:
    """Like a trained layer's: a bulk, and a heavy tail."""
    random = np.random.default_rng(count)
    bulk, tail = random.gamma(3.0, 0.2, count - count // 8), random.pareto(1.8, count // 8) + 0.5
    return np.sort(np.concatenate([bulk, tail]))


def ours_model(path: str) -> dict[str, float]:
    from gpusched.commands.esd import analyze

    return {"seconds": seconds(lambda: analyze(path, embeddings=True)), "peak": peak_bytes()}


def theirs_model(path: str) -> dict[str, float]:
    import weightwatcher
    from transformers import AutoModel

    watcher = weightwatcher.WeightWatcher(model=AutoModel.from_pretrained(path), log_level="ERROR")
    return {"seconds": seconds(lambda: watcher.analyze(plot=False)), "peak": peak_bytes()}


def ours_numbers(shapes: Sequence[tuple[int, int]], count: int) -> dict[str, float]:
    from gpusched.commands.esd import analyze
    from gpusched.commands.esd.fit.power_law import fit
    from gpusched.commands.esd.options import Options

    found = {}
    for rows, columns in shapes:
        given = {"w": matrix(rows, columns)}
        found[f"{rows}x{columns}"] = seconds(partial(analyze, given, parallel=False))
    evals = eigenvalues(count)
    fitted = fit(evals, Options(fix_fingers="DKS"))
    return {**found, "alpha": fitted.alpha, "fit": seconds(lambda: fit(evals, Options(fix_fingers="DKS")), 15)}


def theirs_numbers(shapes: Sequence[tuple[int, int]], count: int) -> dict[str, float]:
    from weightwatcher.RMT_Util import svd_vals
    from weightwatcher.WW_powerlaw import WWFit

    found = {}
    for rows, columns in shapes:
        given = matrix(rows, columns).double().numpy()
        found[f"{rows}x{columns}"] = seconds(partial(svd_vals, given))
    evals = eigenvalues(count)
    return {**found, "alpha": float(WWFit(evals).alpha), "fit": seconds(lambda: WWFit(evals), 3)}


def make_checkpoint(directory: str, size: int, large: tuple[int, int], shards: int) -> dict[str, float]:
    """A sharded checkpoint in bfloat16: in each shard one large layer, and many of LAYERS, but no larger than that."""
    from safetensors.torch import save_file

    place, small = Path(directory), tuple(min(a, b) for a, b in zip(LAYERS, large, strict=True))
    place.mkdir(parents=True)
    index = {}
    each = max(1, int(size / shards / BYTES - large[0] * large[1]) // (small[0] * small[1]))
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        random = torch.Generator().manual_seed(shard)
        tensors = {
            f"layers.{shard}.{n}.weight": torch.randn(*shape, generator=random).to(torch.bfloat16)
            for n, shape in enumerate([large, *[small] * each])
        }
        save_file(tensors, place / file)
        index.update(dict.fromkeys(tensors, file))
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return {"layers": len(index)}


def ours_checkpoint(directory: str) -> dict[str, float]:
    """The stage on it: peak memory beyond what the process has with its libraries, and the greatest layer's need."""
    from gpusched.commands.esd import analyze
    from gpusched.commands.esd.__main__ import main
    from gpusched.commands.esd.options import Options
    from gpusched.commands.esd.read.layers import Layer
    from gpusched.commands.esd.read.sources import open_local
    from gpusched.commands.esd.solve.pipeline import need

    analyze({"w": torch.randn(64, 64)})  # loads whatever is loaded at first use
    before = peak_bytes()
    with redirect_stdout(sys.stderr):
        took = seconds(lambda: main(["--model", directory, "--output-dir", f"{directory}-results"]))
    source = open_local(directory)
    largest = max(sum(need(Layer(info.name, info), Options())) for info in source.infos())
    source.close()
    return {"seconds": took, "extra": peak_bytes() - before, "need": largest}


def ours_finetunes(directory: str, size: int, layers: int, models: int) -> dict[str, float]:
    """Models that differ from their base in one layer each: one alone, and all of them with one cache of spectra."""
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
    found = CONTESTANTS[sys.argv[1]](*json.loads(sys.argv[2]))
    print("\n" + json.dumps(found))
