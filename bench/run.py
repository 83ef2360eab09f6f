"""`make bench`: measure gpusched against floors and peers in one run, and print one table. A report, never a test.

All files are in a new directory below bench/out, which stays: deleting a big tree slows the next measurement.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.common import ROOT, Row, Unusable
from gpusched.host.gpus.claims import file_system_type

MEASUREMENTS = (
    "throughput",
    "gap",
    "many_lines",
    "attributes",
    "startup",
    "footprint",
    "standing",
    "planner",
    "shard",
    "pool",
    "tune",
    "merge",
    "cluster",
    "esd",
    "atlas",
)
NOT_A_DISK = ("tmpfs", "ramfs", "overlay")


def measure(name: str, work_dir: Path, quick: bool, report: Callable[[str], None]) -> list[Row]:
    """Return the rows of one measurement; if it failed, one row with the reason."""
    module = importlib.import_module(f"bench.{name}")
    try:
        rows: list[Row] = module.measure(work_dir / name, quick, lambda text: report(f"{name}: {text}"))
        return rows
    except (Unusable, OSError, subprocess.SubprocessError) as error:
        return [Row(f"{name}: not measured", None, "", note=str(error).partition("\n")[0])]


def table(rows: dict[str, list[Row]]) -> Table:
    result = Table(title="gpusched, measured beside floors and peers", title_justify="left")
    for name in ("measure", "value", "beside", "ratio", "target", "", "note"):
        result.add_column(name, justify="right" if name in ("value", "ratio") else "left")
    for group in rows.values():
        for row in group:
            beside = row.against if row.reference is None else f"{row.against} {_number(row.reference)}"
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            verdict = {None: Text(""), True: Text("ok", "green"), False: Text("MISS", "bold red")}[row.ok]
            cells = (row.name, f"{_number(row.value)} {row.unit}", beside, ratio, row.target, verdict, row.note)
            result.add_row(*cells)
        result.add_section()
    return result


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def document(rows: dict[str, list[Row]], machine: dict[str, object]) -> dict[str, object]:
    measured = {
        name: [{**asdict(row), "ratio": row.ratio, "target": row.target, "ok": row.ok} for row in group]
        for name, group in rows.items()
    }
    return {"machine": machine, "measurements": measured}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("--only", action="append", choices=MEASUREMENTS, help="this measurement; may be repeated")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it works, measures nothing")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there too")
    parser.add_argument("--dir", metavar="DIR", help="where to work (default: bench/out, on this disk)")
    args = parser.parse_args(argv)
    work_dir = Path(args.dir or ROOT / "bench" / "out") / time.strftime("%Y%m%d-%H%M%S")
    work_dir.mkdir(parents=True)
    kind = file_system_type(str(work_dir))
    machine: dict[str, object] = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "file_system": kind,
        "load_before": os.getloadavg()[0],
    }
    console = Console(width=None if sys.stdout.isatty() else 200)
    errors = Console(stderr=True)

    def report(text: str) -> None:
        errors.print(f"  {text}", style="dim", highlight=False)

    rows = {name: measure(name, work_dir, args.quick, report) for name in args.only or MEASUREMENTS}
    console.print(table(rows))
    words = [f"{machine['cpus']} CPUs, Python {machine['python']}, {kind}, load before {machine['load_before']:.1f}"]
    if kind in NOT_A_DISK:
        words.append(f"{work_dir} is no disk: so a sync costs nothing there (--dir)")
    if args.quick:
        words.append("quick: the sizes are too small for the numbers to mean anything")
    missed = [row.name for group in rows.values() for row in group if row.ok is False or row.value is None]
    words.append(f"missed: {'; '.join(missed)}" if missed else "no target was missed")
    words.append(f"the files are in {work_dir}; remove them after the last measurement")
    for line in words:
        console.print(line, highlight=False)
    if args.json:
        Path(args.json).write_text(json.dumps(document(rows, machine), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
