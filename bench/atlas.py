"""Measure the cost of ten adapters on one base against the analysis of one adapter: CPU seconds, one BLAS thread.

The base is one block of a model of eight billion parameters with grouped keys and values, and each adapter changes
queries and values, as most do, so that each has spectra of its own to compute. The first adapter finds an empty cache
and so measures one analysis alone. The ratio leaves out the start of each process, since a whole model has some thirty
such blocks and starts once.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.common import Row, Unusable, clean_environment

ADAPTERS = 10
HIDDEN, KEYS, INNER, BLOCKS, RANK = 4096, 1024, 14336, 1, 16
_ONE = "layers.0.self_attn.k_proj"


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    try:
        import torch
    except ImportError:
        raise Unusable("torch is not installed") from None
    torch.manual_seed(0)
    scale = 16 if quick else 1
    work_dir.mkdir(parents=True, exist_ok=True)
    report("making a base and its adapters")
    _base(work_dir / "base", scale)
    count = 2 if quick else ADAPTERS
    names = [f"lora-{n}" for n in range(count)]
    for name in names:
        _adapter(work_dir / name, scale)
    words = ["--model", "base", "--output-dir", "start", "--layers", _ONE]
    start = [_stage(work_dir, *words) for _ in range(1 if quick else 2)][-1]
    spent: list[float] = []  # the second run above had nothing to compute: it is the cost of a start
    for n, name in enumerate(names, 1):
        report(f"adapter {n} of {count}")
        words = ["--model", name, "--output-dir", "list", "--source-model", "base", "--relation", "lora"]
        spent.append(_stage(work_dir, *words))
    net = sum(seconds - start for seconds in spent) / max(1e-3, spent[0] - start)
    return [
        Row(
            f"{count} adapters on one base",
            sum(spent),
            "s CPU",
            "one of them alone",
            spent[0],
            at_most=2.5,
            of_ratio=True,
            paired=net,
            note=f"without the {start:.1f} s of each start, {sum(spent) / spent[0]:.2f} with them",
        )
    ]


def _stage(work_dir: Path, *words: str) -> float:
    """Run one analysis. Return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-m", "gpusched.commands.esd", *words],
        cwd=work_dir,
        env=clean_environment(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise Unusable((ended.stderr or ended.stdout).strip().rpartition("\n")[2][:200])
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _base(directory: Path, scale: int) -> None:
    hidden, keys, inner = HIDDEN // scale, KEYS // scale, INNER // scale
    shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.o_proj": (hidden, hidden)}
    shapes |= {"self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden)}
    shapes |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}
    tensors = {
        f"model.layers.{n}.{name}.weight": _random(*shape) for n in range(BLOCKS) for name, shape in shapes.items()
    }
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden}
    _write(directory, "model.safetensors", tensors, "config.json", config)


def _adapter(directory: Path, scale: int) -> None:
    hidden, keys = HIDDEN // scale, KEYS // scale
    tensors = {}
    for n in range(BLOCKS):
        for name, rows in (("q_proj", hidden), ("v_proj", keys)):
            prefix = f"base_model.model.model.layers.{n}.self_attn.{name}"
            tensors[f"{prefix}.lora_A.weight"] = _random(RANK, hidden)
            tensors[f"{prefix}.lora_B.weight"] = _random(rows, RANK)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}
    _write(directory, "adapter_model.safetensors", tensors, "adapter_config.json", config)


def _random(*shape: int) -> Any:
    import torch

    return (torch.randn(*shape) * 0.02).to(torch.bfloat16)


def _write(directory: Path, weights: str, tensors: dict[str, Any], about: str, config: dict[str, object]) -> None:
    from safetensors.torch import save_file

    directory.mkdir()
    save_file(tensors, directory / weights)
    (directory / about).write_text(json.dumps(config))
