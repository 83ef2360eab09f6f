"""Remake the pictures of the README: a run on simulated GPUs, as `gpusched top` and as its report show it.

python -m tests.support.pictures; needs chromium for the report.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from textual.pilot import Pilot

from gpusched.common import simulation
from gpusched.host.queue import queue_dirs
from gpusched.tui.changes import TopApp
from tests.support.box import SIMJOB, Box, wait_for
from tests.support.paths import ROOT
from tests.support.screen import play, until_shown

PICTURES = ROOT / "docs" / "pictures"
OPTIONS = ("--max-checks", "3", "--poll-interval", "0.5", "--report")
LIST = (
    *(
        f"[name=train-{n} tag=train mem=20G time=1h] {SIMJOB} --mem {9000 + 700 * n} --hold {24 + 9 * (n % 5)} "
        f"--steps {48 + 18 * (n % 5)} --util {20 + 7 * n % 30}"
        for n in range(1, 10)
    ),
    f"[name=sweep-big tag=big gpus=2] {SIMJOB} --mem 60000 --hold 20 --steps 20 --util 95",
    *(f"[name=eval-{n} tag=eval retries=1] {SIMJOB} --mem 4000 --hold 9 --util 30" for n in range(1, 4)),
    f"[name=broken tag=eval] {SIMJOB} --hold 1; echo 'RuntimeError: shapes [8, 128] and [64] differ'; exit 1",
    f"[name=too-large tag=big prio=5] {SIMJOB} --mem 90000",
    "[name=plot gpus=0 after=train-9] echo done",
)


def main() -> None:
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as root, Box(Path(root), "4") as box:
        for n in range(4):
            heat = {"temp": 41 + 9 * n, "power_w": 95 + 70 * n}
            simulation.change_keys(str(box.simulation / f"gpu{n}" / "state"), **heat)
        os.chdir(box.work)  # as a person sees it there
        box.colleague(3, 30000, hold_s=52, util=60)
        run = box.start("run", box.write(*LIST, name="night.txt"), *OPTIONS)
        wait_for(lambda: len(box.jobs("night")) and sum(row.state == "succeeded" for row in box.jobs("night")) >= 2)
        path = str(box.queue("night"))

        async def steps(app: TopApp, pilot: Pilot[None]) -> None:
            await until_shown(app, pilot, "loss 0.")
            await asyncio.sleep(4)
            await pilot.press("down")
            await asyncio.sleep(2)
            svg = re.sub(r"@font-face \{.*?\}\s*", "", app.export_screenshot(title="gpusched top"), flags=re.DOTALL)
            (PICTURES / "top.svg").write_text(svg)

        play(steps, queue_dirs.QueueDir(path, path), size=(120, 40), claims=box.claims)
        run.wait(120)
        chromium = shutil.which("chromium")
        if chromium is not None:
            words = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={root}/chromium"]
            words += ["--window-size=1000,760", "--hide-scrollbars", f"--screenshot={PICTURES}/report.png"]
            subprocess.run([*words, f"file://{path}/report.html"], check=True, capture_output=True)
        os.chdir(here)


if __name__ == "__main__":
    main()
