"""`gpusched tune`: trials of real workers on the CPU and on simulated GPUs, interrupted, failed, and gone on with."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_rig import Rigged
from tests.support.box import Box, Ended
from tests.support.rig import Rig, build_rig

pytest.importorskip("ruamel.yaml")

WORKER = """\
import os, signal, threading, time
import gpusched

class Plain(gpusched.Worker):
    def batch(self, items):
        time.sleep(0.02 + 0.001 * len(items))
        return [None for _ in items]

class Limited(Plain):
    def batch(self, items):
        if len(items) > 100:
            raise RuntimeError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return super().batch(items)

class Listed(Plain):
    tunable = {"batch_size": [4, 16]}
    thread_safe = True

class Broken(Plain):
    def batch(self, items):
        raise KeyError("labels")

class Killed(Plain):
    def batch(self, items):
        if len(items) >= 32:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(items)

class Nothing(Plain):
    def setup(self, device, settings):
        raise RuntimeError("CUDA out of memory. Tried to allocate 80.00 GiB.")

class Large(Plain):
    largest = 0
    def batch(self, items):
        self.largest = max(self.largest, len(items))
        return super().batch(items)
    def memory_bytes(self):
        return int((2 + self.largest / 16) * 2**30)

class Waiting(Plain):
    def batch(self, items):
        while len(items) >= 32 and os.path.exists("wait"):
            time.sleep(0.02)
        return super().batch(items)
"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, "2") as box:
        (box.work / "w.py").write_text(WORKER)
        (box.work / "items.txt").write_text("".join(f"item {n}\n" for n in range(200)))
        yield box


def tune(box: Box, name: str, *words: str, output: str = "out.yaml") -> Ended:
    options = ("--items", "items.txt", "-o", output, "--trial-items", "2", *words)
    return box.gpusched("tune", f"w.py:{name}", *options)


def block(box: Box, name: str = "out.yaml") -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(box.read(name))["optimization"]
    return found


def test_settings_are_found_and_written(box: Box) -> None:
    ended = tune(box, "Plain", "--max-batch-size", "128", "--max-workers-per-gpu", "2", "--dataset-size", "100000")
    assert ended.code == 0, ended.err
    document = yaml.safe_load(box.read("out.yaml"))
    assert document["worker"] == f"{box.work}/w.py:Plain"
    assert document["optimization"]["batch_size"] >= 64
    assert document["optimization"]["max_workers_per_gpu"] == 2
    assert "# measured 20" in box.read("out.yaml")
    assert "100000 items take" in ended.out
    assert "on 2 GPUs" in ended.out
    assert not box.claimed()

    again = tune(box, "Plain", "--max-batch-size", "128", "--max-workers-per-gpu", "2", "--dataset-size", "100000")
    assert again.code == 0
    assert "trials on record" in again.err
    assert not [line for line in again.err.splitlines() if "items/s" in line]


def test_memory_ends_the_sizes_and_is_no_failure(box: Box) -> None:
    ended = tune(box, "Limited", "--max-workers-per-gpu", "1", "--json")
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    outcomes = {trial["setting"]["batch_size"]: trial["outcome"] for trial in report["trials"]}
    assert all((size > 100) == (outcome == "out of memory") for size, outcome in outcomes.items())
    assert 89 <= max(size for size, outcome in outcomes.items() if outcome == "ok") <= 100
    assert block(box)["batch_size"] <= 100


def test_workers_share_the_memory_of_a_card(box: Box) -> None:
    """A worker takes 2 GiB and 64 MiB for each item: the sum for all workers stays below 0.9 of the card's 80 GiB."""
    ended = tune(box, "Large", "--max-workers-per-gpu", "3", "--dataset-size", "100000", "--json")
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    for trial in report["trials"]:
        setting = trial["setting"]
        assert trial["peak_bytes"] == int((2 + setting["batch_size"] / 16) * 2**30)
        assert trial["peak_bytes"] * setting["workers"] <= 0.9 * 80 * 2**30
    assert report["best"]["workers"] == 3
    assert 256 < report["best"]["batch_size"] <= 352


def test_list_of_the_worker_and_threads(box: Box) -> None:
    ended = tune(box, "Listed", "--cpu-workers", "1", "--json")
    assert ended.code == 0, ended.err
    settings = [trial["setting"] for trial in json.loads(ended.out)["trials"]]
    assert {each["batch_size"] for each in settings} == {4, 16}
    assert {each["threads"] for each in settings} == {1, 2, 4}
    assert block(box)["threads"] == 4  # they sleep, so four do four times as much
    assert block(box)["cpu_workers"] == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Broken", "batch size 8: item \"item 131\": KeyError: 'labels'"),
        ("Killed", "batch size 32: was killed by signal 9, as the kernel does when the memory of the host is short"),
    ],
)
def test_failures_end_the_tuning_with_their_message(box: Box, name: str, words: str) -> None:
    ended = tune(box, name, "--cpu-workers", "1")
    assert ended.code == 1
    assert f"error: {words} (log: {box.queue('out.tune')}/logs/0001.1-tune.log)" in ended.err
    assert "Traceback" not in ended.err and not ended.out
    assert not (box.work / "out.yaml").exists()


def test_failure_is_one_document_too(box: Box) -> None:
    ended = tune(box, "Broken", "--cpu-workers", "1", "--json")
    assert ended.code == 1
    assert json.loads(ended.out)["problem"].startswith('batch size 8: item "item ')


def test_nothing_fits(box: Box) -> None:
    ended = tune(box, "Nothing")
    assert ended.code == 1
    assert "nothing fits" in ended.out
    assert not (box.work / "out.yaml").exists()


def test_interrupted_tuning_goes_on(box: Box) -> None:
    (box.work / "wait").touch()
    words = ("tune", "w.py:Waiting", "--items", "items.txt", "-o", "out.yaml", "--cpu-workers", "1")
    running = box.start(*words, "--max-batch-size", "32")
    running.wait_until_said("batch size 8")
    running.signal(signal.SIGINT)
    running.wait_until_said("once more")
    running.signal(signal.SIGINT)
    assert running.wait().code == 130
    (box.work / "wait").unlink()
    ended = box.gpusched(*words, "--max-batch-size", "32")
    assert ended.code == 0, ended.err
    assert "1 trial on record" in ended.err
    assert "batch size 8" not in ended.err
    assert block(box)["batch_size"] in (16, 32)


@pytest.mark.parametrize("words", [("--dry-run",), ("--threads", "1")])
def test_sizes_that_no_items_would_fill_are_named(box: Box, words: tuple[str, ...]) -> None:
    options = ("--batch-sizes", "4,16,64,128", "--cpu-workers", "1", *words)
    (box.work / "items.txt").write_text("a\nb\n" * 20)
    ended = tune(box, "Plain", *options)
    assert ended.code == 0, ended.text
    assert "not tried: batch size 64, 128, above 40, which is --max-batch-size or all items" in ended.out
    assert "--dataset-size N" in ended.out
    assert json.loads(tune(box, "Plain", *options, "--json").out)["left_out"] == [64, 128]
    assert "not tried" not in tune(box, "Plain", *options, "--dataset-size", "200").out


SPOILED = """\
import gpusched

class Bad(gpusched.Worker):
    def batch(self, items):
        if "item 7" in items:
            raise ValueError("cannot identify image file")
        return items

class Spoiled(gpusched.Worker):
    def batch(self, items):
        raise RuntimeError("CUDA error: device-side assert triggered")
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Bad", r'batch size 4: item "item 7": ValueError: cannot identify image file'),
        ("Spoiled", r'batch size 4: items "item \d+" to "item \d+": RuntimeError: CUDA error: device-side assert'),
    ],
)
def test_the_item_that_ends_a_tuning_is_named(box: Box, name: str, says: str) -> None:
    (box.work / "w.py").write_text(SPOILED)
    (box.work / "items.txt").write_text("".join(f"item {n}\n" for n in range(1, 13)))
    ended = tune(box, name, "--batch-sizes", "4", "--cpu-workers", "1", "--trial-items", "12")
    assert ended.code == 1, ended.text
    assert re.search(says, ended.err), ended.text


def test_trials_are_logged(box: Box) -> None:
    pytest.importorskip("wandb")
    environment = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    words = ("w.py:Listed", "--items", "items.txt", "-o", "out.yaml", "--cpu-workers", "1", "--threads", "1")
    ended = box.gpusched("tune", *words, "--wandb", "captions", **environment)
    assert ended.code == 0, ended.err
    (run,) = box.work.glob("**/wandb/offline-run-*/*.wandb")
    data = run.read_bytes()
    assert {int(size) for size in re.findall(rb"batch_size[^a-z]{1,6}?(\d+)", data)} >= {4, 16}
    assert b"items_per_s" in data
    assert block(box)["wandb"] == {"enabled": True, "project": "captions"}


HOLDING = """\
import subprocess, sys, time
import gpusched

class Held(gpusched.Worker):
    def setup(self, device, settings):
        command = [sys.executable, "-S", settings["program"], "alloc", "4000", "--hold", "600"]
        self.program = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.program.stdout.readline()
    def batch(self, items):
        time.sleep(0.02)
        return items
    def teardown(self):
        self.program.kill()
"""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return build_rig(tmp_path_factory.mktemp("rig"))


@pytest.mark.slow
@pytest.mark.parametrize(("pids", "source"), [("normal", "process"), ("hidden", "report")])
def test_memory_is_what_the_driver_tells(rig: Rig, tmp_path: Path, pids: str, source: str) -> None:
    """A program that the worker has started counts; where processes are not listed, the worker's own report does."""
    with (
        rig.machine(tmp_path / "machine", gpus=1, model="RTX3090") as machine,
        Rigged(tmp_path / "box", machine) as box,
    ):
        machine.set("system", f"pids={pids}")
        report = "    def memory_bytes(self):\n        return 3000 << 20\n"
        (box.work / "w.py").write_text(HOLDING + report)
        (box.work / "items.txt").write_text("".join(f"item {n}\n" for n in range(200)))
        words = ("--batch-sizes", "4", "--max-workers-per-gpu", "2", "--max-checks", "1", "--poll-interval", "0.2")
        ended = tune(box, "Held", *words, "--set", f"program={machine.tools}/fakegpu", "--json")
        assert ended.code == 0, ended.err
        trials = json.loads(ended.out)["trials"]
        assert [trial["setting"]["workers"] for trial in trials] == [1, 2]
        assert {trial["memory_by"] for trial in trials} == {source}
        assert {trial["peak_bytes"] >> 20 for trial in trials} == {4000 if source == "process" else 3000}


def test_dry_run_changes_nothing(box: Box) -> None:
    """It lists the trials of a search in which each step is one for the better."""
    ended = tune(box, "Plain", "--dry-run", "--json")
    assert ended.code == 0, ended.err
    trials = [(each["setting"]["batch_size"], each["setting"]["workers"]) for each in json.loads(ended.out)["trials"]]
    assert trials == [(8, 1), (32, 1), (100, 1), (100, 2), (100, 3), (100, 4)]
    ended = tune(box, "Plain", "--dry-run")
    assert ended.code == 0
    assert "at most 12" in ended.out
    assert not (box.work / "out.yaml").exists()
    assert not box.queue("out.tune").exists()


def test_file_keeps_everything_beside_the_block(box: Box) -> None:
    text = "# mine\nworker: x.py:X   # other\noptimization:\n  batch_size: ${sizes.b}\n\n# end\nlast: {a:  1}\n"
    (box.work / "out.yaml").write_text(text)
    ended = tune(box, "Listed", "--cpu-workers", "1", "--threads", "1")
    assert ended.code == 0, ended.err
    assert "refer to other places: batch_size" in ended.out
    new = box.read("out.yaml")
    assert new.startswith("# mine\nworker: x.py:X   # other\noptimization:\n")
    assert new.endswith("\n\n# end\nlast: {a:  1}\n")


def test_torch_module_on_the_cpu(box: Box) -> None:
    """The size is found beyond which the time of an item no longer falls."""
    pytest.importorskip("torch")
    (box.work / "w.py").write_text(
        "import gpusched, torch, time\n"
        "class Module(gpusched.Worker):\n"
        "    def setup(self, device, settings):\n"
        "        torch.set_num_threads(1)\n"
        "        self.layer = torch.nn.Linear(256, 256)\n"
        "    def batch(self, items):\n"
        "        time.sleep(0.01)  # what a launch costs\n"
        "        with torch.inference_mode():\n"
        "            for _ in range(20):\n"
        "                out = self.layer(torch.zeros(len(items), 256))\n"
        "        return out.sum(1).tolist()\n"
    )
    ended = tune(box, "Module", "--cpu-workers", "1", "--max-batch-size", "2048", "--json")
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    rates = {trial["setting"]["batch_size"]: trial["items_per_s"] for trial in report["trials"]}
    best = report["best"]["batch_size"]
    assert best > 8
    assert rates[best] >= 0.9 * max(rates.values())
    assert all(rate < 0.98 * max(rates.values()) for size, rate in rates.items() if size <= best / 4)


def test_each_pool_of_a_file(box: Box) -> None:
    first = "  a:\n    worker: w.py:Listed\n    items: items.txt\n"
    text = f"pools:\n{first}  b:\n    worker: w.py:Plain  # plain\n    items: items.txt\n"
    (box.work / "out.yaml").write_text(text)
    words = ("--cpu-workers", "1", "--threads", "1", "--max-batch-size", "16", "--trial-items", "2", "-o", "out.yaml")
    ended = box.gpusched("tune", *words, "--script", "b")
    assert ended.code == 0, ended.err
    pools = yaml.safe_load(box.read("out.yaml"))["pools"]
    assert "optimization" not in pools["a"]
    assert pools["b"]["optimization"]["batch_size"] == 16
    assert "w.py:Plain  # plain" in box.read("out.yaml")

    ended = box.gpusched("tune", *words, "--json")
    assert ended.code == 0, ended.err
    assert set(json.loads(ended.out)["pools"]) == {"a", "b"}
    assert yaml.safe_load(box.read("out.yaml"))["pools"]["a"]["optimization"]["batch_size"] == 16

    ended = box.gpusched("tune", "w.py:Plain", "--items", "items.txt", *words)
    assert ended.code == 2
    assert "describes several pools" in ended.err
    ended = box.gpusched("tune", *words, "--script", "c")
    assert ended.code == 2
    assert "describes no pool 'c'" in ended.err
