"""Collect training data for a range of problems: a script as it was before anybody thought of several GPUs.

For each problem a solver (here: a toy that adds two numbers, and errs now and then) is asked, and what it did is
recorded. The records go to `OUTPUT_DIR/samples_SUFFIX.pt`, or to a `.jsonl` where there is no torch, and what they are
to `OUTPUT_DIR/samples_SUFFIX_metadata.json`. It resumes nothing: what is interrupted is done again from its beginning.

    python examples/collect.py --data_start_idx 0 --max_samples 100 --output_suffix all --output-dir prm_data
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

FEATURES = 8


def solve(index: int, seed: int, seconds: float) -> dict[str, Any]:
    """One problem. The same index and seed give the same record, whichever GPU it runs on."""
    rng = random.Random(f"{seed} {index}")
    a, b = rng.randrange(100), rng.randrange(100)
    time.sleep(seconds)  # the model at work
    answer = a + b + rng.choice([0, 0, 0, 1])
    features = [round(rng.gauss(0.0, 1.0), 6) for _ in range(FEATURES)]
    return {
        "index": index,
        "question": f"{a}+{b}",
        "answer": answer,
        "correct": answer == a + b,
        "features": features,
    }


def tell_progress(done: int, total: int) -> None:
    """Say how far it is, to people, and to whoever has named a file for it."""
    print(f"{done} of {total} samples", flush=True)
    path = os.environ.get("GPUSCHED_PROGRESS")
    if path:
        replace(Path(path), json.dumps({"done": done, "total": total, "unit": "samples"}).encode())


def replace(path: Path, data: bytes) -> None:
    """Write under another name first: nobody ever reads half of it."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_bytes(data)
    half.replace(path)


def save(samples: list[dict[str, Any]], stem: Path, kind: str) -> None:
    if kind == "pt":
        import io

        import torch

        held = io.BytesIO()
        tensors = {
            "features": torch.tensor([sample["features"] for sample in samples]).reshape(-1, FEATURES),
            "labels": torch.tensor([int(sample["correct"]) for sample in samples]),
            "index": [sample["index"] for sample in samples],
            "questions": [sample["question"] for sample in samples],
        }
        torch.save(tensors, held)
        replace(stem.with_name(stem.name + ".pt"), held.getvalue())
    else:
        lines = "".join(json.dumps(sample) + "\n" for sample in samples)
        replace(stem.with_name(stem.name + ".jsonl"), lines.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data_start_idx", type=int, default=0, help="the first problem")
    parser.add_argument("--max_samples", type=int, default=100, help="how many problems")
    parser.add_argument("--output_suffix", default="all", help="goes into the names of the files")
    parser.add_argument("--output-dir", type=Path, default=Path("prm_data"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=("auto", "pt", "jsonl"), default="auto", help="auto: pt, if torch is there")
    parser.add_argument("--seconds", type=float, default=0.01, help="what a problem takes")
    args = parser.parse_args()

    kind = args.format
    if kind == "auto":
        from importlib.util import find_spec

        kind = "pt" if find_spec("torch") else "jsonl"
    samples = []
    for n in range(args.max_samples):
        samples.append(solve(args.data_start_idx + n, args.seed, args.seconds))
        if (n + 1) % 10 == 0 or n + 1 == args.max_samples:
            tell_progress(n + 1, args.max_samples)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    stem = args.output_dir / f"samples_{args.output_suffix}"
    correct = sum(sample["correct"] for sample in samples)
    metadata = {
        "num_samples": len(samples),
        "correct": correct,
        "accuracy": correct / len(samples) if samples else None,
        "data_start_idx": args.data_start_idx,
        "seed": args.seed,
    }
    save(samples, stem, kind)
    replace(stem.with_name(stem.name + "_metadata.json"), json.dumps(metadata, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
