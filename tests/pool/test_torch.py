"""A worker with a real module of torch on the CPU: threads that share it, results that are those of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.box import Box
from tests.support.pool import pool, results, write_items

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
WORK = """\
import os, threading
import torch
import gpusched

class Work(gpusched.Worker):
    thread_safe = True
    tunable = {"batch_size": [1, 4]}

    def setup(self, device, settings):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)).double()
        with open("loads.txt", "a") as file:
            file.write(f"{os.getpid()} {device}\\n")

    def thread_setup(self):
        with open("threads.txt", "a") as file:
            file.write(f"{threading.get_ident()}\\n")

    def __call__(self, item):
        generator = torch.Generator().manual_seed(int(item))
        with torch.no_grad():
            return self.model(torch.randn(8, generator=generator, dtype=torch.double))
"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path, "1") as box:
        (box.work / "work.py").write_text(WORK)
        write_items(box, 60)
        yield box


def test_threads_share_one_loaded_module_and_its_results_are_those_of_one_process(box: Box) -> None:
    assert pool(box, "--inline", "--cpu-workers", "1").wait().code == 0
    alone = results(box)
    (box.work / "loads.txt").unlink()
    (box.work / "threads.txt").unlink()
    ended = pool(box, "--threads", "3", "--cpu-workers", "1", "--overwrite").wait()
    assert ended.code == 0, ended.text
    assert results(box) == alone
    assert len(results(box)[0]["result"]) == 3
    assert len(box.read("loads.txt").splitlines()) == 1
    assert len(set(box.read("threads.txt").split())) == 3
    assert "loaded once" in ended.out


def test_the_module_of_the_verb_imports_neither_torch_nor_the_worker(box: Box) -> None:
    script = (
        "import sys, gpusched; gpusched.Worker; print('torch' in sys.modules, 'gpusched.dispatcher' in sys.modules)"
    )
    ended = box.spawn("-c", script, program=[__import__("sys").executable]).wait()
    assert ended.out.split() == ["False", "False"]
