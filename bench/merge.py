"""Measure the merge of JSON Lines with every record checked against `cat` and fsync, and its memory."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.common import MIB, Row, Unusable, clean_environment, interleaved, median, paired_ratio, peak_bytes, spread

PARTS = 4
WORDS = ("the", "model", "answers", "a", "question", "about", "its", "“own”", "weights", "and", "then", "stops\n")


def write_parts(work_dir: Path, size: int) -> list[Path]:
    """Write parts with records of 200 B to 2 kB like the answers of a model: text, numbers, lists, a few escapes.

    They are written by json.dumps; the last part has characters beyond ASCII, by ensure_ascii=False.
    """
    work_dir.mkdir(parents=True)
    source = random.Random(1)
    records: dict[bool, list[bytes]] = {True: [], False: []}
    for number in range(2000):
        text = " ".join(source.choices(WORDS, k=source.randint(10, 300)))
        record = {"id": number, "prompt": text[:400], "response": text, "score": source.random(), "ok": True}
        record["tokens"] = [source.randrange(50_000) for _ in range(source.randint(2, 12))]
        for ascii_ in records:
            records[ascii_].append(json.dumps(record, ensure_ascii=ascii_).encode() + b"\n")
    paths = [work_dir / f"part_{number}.jsonl" for number in range(PARTS)]
    for path in paths:
        with open(path, "wb") as file:
            while file.tell() < size // PARTS:
                file.write(b"".join(source.sample(records[path is not paths[-1]], 500)))
    return paths


def cat(paths: list[Path], work_dir: Path) -> tuple[float, int]:
    """Return the seconds of cat and fsync."""
    began = time.perf_counter()
    with open(work_dir / "all.jsonl", "wb") as out:
        subprocess.run(["cat", *paths], stdout=out, check=True)
        os.fsync(out.fileno())
    return time.perf_counter() - began, 0


def merge(paths: list[Path], work_dir: Path) -> tuple[float, int]:
    """Return the seconds of a merge, and its peak memory."""
    words = [sys.executable, "-m", "gpusched.commands.merge", "-o", str(work_dir / "all.jsonl"), *map(str, paths)]
    began, peak = time.perf_counter(), 0
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=clean_environment())
    while process.poll() is None:
        try:
            peak = max(peak, peak_bytes(process.pid))
        except OSError:  # it has just ended
            pass
        time.sleep(0.02)
    took = time.perf_counter() - began
    if process.returncode:
        raise Unusable(f"the merge ended with {process.returncode}")
    return took, peak


def measure(work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    size, rounds = (4_000_000, 1) if quick else (1_000_000_000, 5)
    report("writing the parts")
    paths = write_parts(work_dir / "parts", size)
    contestants = {"merge": lambda into: merge(paths, into), "cat": lambda into: cat(paths, into)}
    results = interleaved(work_dir, rounds, contestants, report)
    merged, copied = [took for took, _ in results["merge"]], [took for took, _ in results["cat"]]
    total = sum(path.stat().st_size for path in paths)
    if (work_dir / "merge.0" / "all.jsonl").stat().st_size != total:
        raise Unusable("the output is not as long as its parts")
    for name in os.listdir(work_dir):  # gigabytes, and this is the last measurement
        shutil.rmtree(work_dir / name)
    what = f"merge of {total / 1e9:.2g} GB of jsonl"
    note = spread([took / other for took, other in zip(merged, copied, strict=True)])
    return [
        Row(
            f"{what}, every record checked",
            median(merged),
            "s",
            "cat and fsync",
            median(copied),
            at_most=3,
            of_ratio=True,
            paired=paired_ratio(merged, copied),
            note=note,
        ),
        Row(f"{what}: peak memory", max(peak for _, peak in results["merge"]) / MIB, "MiB", at_most=300),
    ]
