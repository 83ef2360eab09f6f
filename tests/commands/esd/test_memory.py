"""The memory model against the peak of the resident set that the solvers really have."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpusched.esd.gpu_memory import layer_need
from tests.support.paths import ROOT

MIB = 1 << 20
SHAPES = [(1536, 1536), (4096, 1024), (1024, 4096)]
SOLVERS = ("gram", "fast", "svd")

MEASURE = """
import ctypes, gc, json, sys
from pathlib import Path
import torch
from gpusched.commands.esd.read.sources import open_local
from gpusched.commands.esd.read.tensors import LazyTensor
from gpusched.commands.esd.solve.fallback import return_freed_blocks
from gpusched.commands.esd.solve.spectrum import spectrum
from gpusched.esd.options import AnalysisOptions

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

def solve(source, name, solver):
    lazy = LazyTensor(lambda: source.read(name))
    spectrum(lazy, AnalysisOptions(solver=solver), convolution=False, device=torch.device("cpu"))

torch.set_num_threads(1)
return_freed_blocks()
source = open_local(sys.argv[1])
found = {}
for info in source.infos():
    for solver in sys.argv[2:]:
        solve(source, info.name, solver)  # loads code
        peaks = []
        for _ in range(3):
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before = memory("VmRSS")
            solve(source, info.name, solver)
            peaks.append(memory("VmHWM") - before)
        found[f"{info.name} {solver}"] = sorted(peaks)[1]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    path = tmp_path_factory.mktemp("memory") / "model.safetensors"
    save_file({f"{rows}x{columns}": torch.randn(rows, columns).bfloat16() for rows, columns in SHAPES}, path)
    words = [sys.executable, "-c", MEASURE, str(path), *SOLVERS]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="this system cannot reset the measured peak")
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_model_is_the_measured_peak(peaks: dict[str, int], shape: tuple[int, int], solver: str) -> None:
    need = layer_need(shape, 2, solver=solver).host
    measured = peaks[f"{shape[0]}x{shape[1]} {solver}"]
    assert 0.8 * need <= measured <= 1.15 * need + 3 * MIB, f"{measured / MIB:.1f} of {need / MIB:.1f} MiB"


def test_one_layer_may_use_the_memory_of_several_matrices() -> None:
    one = layer_need((64, 32), 4, solver="auto")
    nine = layer_need((64, 32), 4, solver="auto", matrices=9)
    assert (nine.host - one.host, nine.gpu) == (8 * 4 * 64 * 32, one.gpu)
    assert layer_need((64, 32), 4, solver="auto", copies=2).host == one.host + 4 * 64 * 32
