"""How fast JSON Lines are merged with every record checked, beside `cat` and fsync, and in how much memory."""

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


def write_parts(place: Path, size: int) -> list[Path]:
    """Parts of records of 200 B to 2 kB, as a script writes what a model said: text, numbers, lists, a few escapes.

    As json.dumps writes them; the last part with characters beyond ASCII, as it does with ensure_ascii=False.
    """
    place.mkdir(parents=True)
    source = random.Random(1)
    records: dict[bool, list[bytes]] = {True: [], False: []}
    for number in range(2000):
        text = " ".join(source.choices(WORDS, k=source.randint(10, 300)))
        record = {"id": number, "prompt": text[:400], "response": text, "score": source.random(), "ok": True}
        record["tokens"] = [source.randrange(50_000) for _ in range(source.randint(2, 12))]
        for ascii_ in records:
            records[ascii_].append(json.dumps(record, ensure_ascii=ascii_).encode() + b"\n")
    paths = [place / f"part_{number}.jsonl" for number in range(PARTS)]
    for path in paths:
        with open(path, "wb") as file:
            while file.tell() < size // PARTS:
                file.write(b"".join(source.sample(records[path is not paths[-1]], 500)))
    return paths


def cat(paths: list[Path], place: Path) -> tuple[float, int]:
    """Seconds of cat and fsync."""
    began = time.perf_counter()
    with open(place / "all.jsonl", "wb") as out:
        subprocess.run(["cat", *paths], stdout=out, check=True)
        os.fsync(out.fileno())
    return time.perf_counter() - began, 0


def merge(paths: list[Path], place: Path) -> tuple[float, int]:
    """Seconds of a merge, and the most memory that it was seen to have."""
    words = [sys.executable, "-m", "gpusched.commands.merge", "-o", str(place / "all.jsonl"), *map(str, paths)]
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


def measure(place: Path, quick: bool, tell: Callable[[str], None]) -> list[Row]:
    size, rounds = (4_000_000, 1) if quick else (1_000_000_000, 5)
    tell("writing the parts")
    paths = write_parts(place / "parts", size)
    contestants = {"merge": lambda into: merge(paths, into), "cat": lambda into: cat(paths, into)}
    found = interleaved(place, rounds, contestants, tell)
    merged, copied = [took for took, _ in found["merge"]], [took for took, _ in found["cat"]]
    total = sum(path.stat().st_size for path in paths)
    if (place / "merge.0" / "all.jsonl").stat().st_size != total:
        raise Unusable("the output is not as long as its parts")
    for name in os.listdir(place):  # gigabytes, and this is the last measurement
        shutil.rmtree(place / name)
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
        Row(f"{what}: peak memory", max(peak for _, peak in found["merge"]) / MIB, "MiB", at_most=300),
    ]
