"""Layers one after the other and beside each other: same results, bounded memory, spectra computed once."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpusched.commands.esd import analyze
from gpusched.commands.esd.analysis import NoDevice, choose_device
from gpusched.commands.esd.read.sources import StateSource
from gpusched.commands.esd.read.tensors import LazyTensor, ModelError, TensorInfo
from gpusched.commands.esd.solve.cache import SpectraCache, content_key
from gpusched.commands.esd.solve.fallback import NoRoom, Poisoned, fallback, shortage
from gpusched.commands.esd.solve.pipeline import Budget, Pipeline, Solved, solve_layer
from gpusched.commands.esd.solve.randomized import shuffled
from gpusched.commands.esd.solve.spectrum import Spectrum, spectrum
from gpusched.commands.esd.weights.layers import Layer

from gpusched.esd.options import AnalysisOptions

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
GPU_FULL = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB"
ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"

torch.set_num_threads(1)  # other tests run beside these


def state(layers: int = 7) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(11)
    made = {f"layers.{n}.weight": torch.randn(30 + n, 20 + 3 * n, generator=random) for n in range(layers)}
    return {**made, "conv.weight": torch.randn(6, 5, 3, generator=random), "bias": torch.zeros(4)}


def a_layer(tensor: torch.Tensor) -> Layer:
    return Layer("w", TensorInfo("w", tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[SpectraCache]:
    made = SpectraCache(tmp_path / "cache")
    yield made
    made.close()


# ---- the whole ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_layers_beside_each_other_give_what_they_give_alone(threads: int, tmp_path: Path) -> None:
    alone = analyze(state(), parallel_gpu=False)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for cache_dir in (None, tmp_path, tmp_path):
            together = analyze(state(), cache_dir=cache_dir)
            assert together.to_csv() == alone.to_csv()
            for name, evals in alone.spectra.items():
                np.testing.assert_allclose(together.spectra[name], evals, rtol=1e-12)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert [row.longname for row in alone.rows] == [f"layers.{n}" for n in range(7)] + ["conv"]


def test_a_module_a_state_dict_and_a_file_give_the_same(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(9, 12), torch.nn.Conv1d(12, 8, 3))
    torch.save(module.state_dict(), tmp_path / "model.pt")
    tables = [analyze(module), analyze(module.state_dict()), analyze(tmp_path / "model.pt")]
    assert len({table.to_csv(columns="netesd") for table in tables}) == 1
    columns = tables[0].as_columns()
    assert columns["longname"] == ["0", "1"] and columns["num_evals"] == [9, 24]


def test_layers_that_fail_are_told_and_the_others_go_on() -> None:
    broken = state()
    broken["layers.1.weight"][3, 4] = float("nan")
    broken["layers.2.weight"][3, 4] = float("inf")
    broken["experts.w"] = torch.ones(3, 4, 4)
    broken["experts.w"][1, 0, 0] = float("nan")
    table = analyze(broken)
    told = {skip.tensor.name: skip.reason for skip in table.skipped}
    assert told == {
        "layers.1.weight": "it holds NaN",
        "layers.2.weight": "it holds Inf",
        "experts.w[1]": "it holds NaN",
    }
    assert len(table.rows) == 8 and not any("nan" in row.longname for row in table.rows)


def test_no_fit_is_nan_and_never_averaged_in() -> None:
    table = analyze({"zeros": torch.zeros(5, 6), "a": torch.randn(9, 9), "b": torch.randn(9, 9), "one": torch.eye(4)})
    rows = {row.longname: row for row in table.rows}
    assert rows["zeros"].fit_status == "zeros" and np.isnan(rows["zeros"].alpha)
    assert rows["one"].fit_status == "flat" and np.isnan(rows["one"].alpha)
    mean = (rows["a"].alpha + rows["b"].alpha) / 2
    assert table.statistics()["alpha_mean"] == pytest.approx(mean)
    assert analyze({"zeros": torch.zeros(5, 6)}).statistics()["alpha_mean"] is None


class Broken:
    """A source that may fail at one name."""

    def __init__(self, tensors: dict[str, torch.Tensor], cut: str = "") -> None:
        self.inner = StateSource(tensors)
        self.cut = cut

    def read(self, name: str, rows: slice | None = None) -> torch.Tensor:
        if name == self.cut:
            raise ModelError("load", "it was cut while it was read")
        tensor: torch.Tensor = self.inner.read(name, rows)
        return tensor


@pytest.mark.parametrize("parallel", [True, False])
def test_a_file_that_fails_ends_the_model(parallel: bool) -> None:
    source = Broken(state(), cut="layers.3.weight")
    layers = [Layer(info.name, info) for info in source.inner.infos() if len(info.shape) == 2]
    with pytest.raises(ModelError, match="was cut"):
        Pipeline(source, layers, AnalysisOptions(parallel_gpu=parallel), CPU).run()


def test_a_budget_holds_no_more_than_it_may_unless_one_asks_alone() -> None:
    budget, lock = Budget(100), threading.Lock()
    taken, most = [0], [0]

    def work(amount: int) -> None:
        with budget.taken(amount):
            with lock:
                taken[0] += amount
                most[0] = max(most[0], taken[0])
            with lock:
                taken[0] -= amount

    amounts = [10, 60, 40, 100, 5, 30] * 20
    threads = [threading.Thread(target=work, args=(amount,)) for amount in amounts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken[0] == 0 and most[0] <= 100
    with budget.taken(1000):
        pass


def test_chance_keeps_the_entries_and_loses_the_structure() -> None:
    strong = torch.outer(torch.arange(1.0, 41), torch.arange(1.0, 31)).to(torch.bfloat16)
    mixed = shuffled(strong, "w")
    assert torch.equal(mixed.flatten().sort().values, strong.flatten().sort().values)
    assert torch.equal(mixed, shuffled(strong, "w")) and not torch.equal(mixed, shuffled(strong, "v"))
    row = analyze({"w": strong.float() + torch.randn(40, 30)}, randomize=True).rows[0]
    assert row.rand_xmax < row.xmax and row.rand_bulk_max < row.xmax and (row.rand_num_spikes or 0) >= 1
    noise = analyze({"w": torch.randn(60, 80)}, randomize=True).rows[0]
    assert noise.rand_bulk_max == pytest.approx((60**0.5 + 80**0.5) ** 2, rel=0.1)


# ---- memory ------------------------------------------------------------------------------------------


class Full:
    """Computes as `spectrum`, but is out of memory for the first `times`."""

    def __init__(self, error: BaseException, times: int) -> None:
        self.error, self.times = error, times
        self.ways: list[str] = []

    def __call__(
        self, held: LazyTensor, options: AnalysisOptions, *, convolution: bool, device: torch.device
    ) -> Spectrum:
        self.ways.append(device.type)
        if len(self.ways) <= self.times:
            raise self.error
        return spectrum(held, options, convolution=convolution, device=CPU)


OUT_OF_MEMORY = [torch.OutOfMemoryError(GPU_FULL), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")]


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)


@pytest.mark.parametrize("error", OUT_OF_MEMORY)
@pytest.mark.parametrize(
    ("times", "last", "note"), [(0, "cuda", ""), (1, "cpu", "out of GPU memory: done with the CPU")]
)
def test_out_of_memory_is_tried_on_the_cpu_and_said(error: BaseException, times: int, last: str, note: str) -> None:
    tensor, full = torch.randn(30, 40), Full(error, times)
    found = solve_layer(LazyTensor(lambda: tensor), a_layer(tensor), AnalysisOptions(), CUDA, full)
    assert isinstance(found, Solved)
    assert (full.ways[-1], found.spectrum.note) == (last, note)
    wanted = spectrum(LazyTensor(lambda: tensor), AnalysisOptions(), convolution=False, device=CPU)
    np.testing.assert_allclose(found.spectrum.evals, wanted.evals, rtol=1e-6)


def test_a_layer_for_which_there_is_no_memory_at_all_is_skipped() -> None:
    tensor = torch.randn(3, 4)
    error = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
    full = Full(error, 99)
    assert solve_layer(LazyTensor(lambda: tensor), a_layer(tensor), AnalysisOptions(), CPU, full) == (
        "out of host memory: it takes 0 MiB"
    )
    assert full.ways == ["cpu"]


@pytest.mark.parametrize("text", [ILLEGAL, "CUDA error: unspecified launch failure", "CUDA error: device-side assert"])
def test_a_dead_context_is_not_tried_again(text: str) -> None:
    tensor, dead = torch.randn(3, 4), Full(RuntimeError(text), 99)
    with pytest.raises(Poisoned, match=text.partition("\n")[0]):
        solve_layer(LazyTensor(lambda: tensor), a_layer(tensor), AnalysisOptions(), CUDA, dead)
    assert len(dead.ways) == 1


def test_other_errors_are_no_shortage() -> None:
    assert shortage(MemoryError()) == "out of host memory"
    assert shortage(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) == ""
    with pytest.raises(KeyError):
        fallback(lambda place: {}[0], CUDA)  # type: ignore[index]


def test_a_solver_that_fails_on_the_card_is_left_for_the_cpu() -> None:
    def compute(place: torch.device) -> str:
        if place.type == "cuda":
            raise RuntimeError("cusolver error: CUSOLVER_STATUS_INVALID_VALUE, when calling `cusolverDnXsyevd`")
        return "solved"

    assert fallback(compute, CUDA) == ("solved", "the solver of the GPU failed: done with the CPU")
    with pytest.raises(NoRoom, match="the solver of the GPU failed"):
        fallback(lambda place: compute(CUDA), CUDA)


def test_a_device_that_is_not_there_is_said_in_the_words_of_its_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu") == CPU

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("No CUDA GPUs are available\nmore")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(NoDevice, match=r"^No CUDA GPUs are available$"):
        choose_device("cuda:1")


# ---- the cache ---------------------------------------------------------------------------------------


def test_a_key_is_of_the_content_and_of_the_way() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    key = content_key(tensor, AnalysisOptions(), convolution=False)
    assert key == content_key(tensor.T.contiguous().T, AnalysisOptions(bins=7, fix_fingers="DKS"), convolution=False)
    others = [
        content_key(tensor.reshape(4, 3), AnalysisOptions(), convolution=False),
        content_key(tensor.to(torch.float64), AnalysisOptions(), convolution=False),
        content_key(tensor.view(torch.int32), AnalysisOptions(), convolution=False),
        content_key(tensor, AnalysisOptions(solver="svd"), convolution=False),
        content_key(tensor, AnalysisOptions(farms=True), convolution=False),
        content_key(tensor, AnalysisOptions(evals_thresh=0.1), convolution=False),
        content_key(tensor, AnalysisOptions(), convolution=True),
    ]
    assert len({key, *others}) == 8


def test_what_was_put_comes_back_unless_it_is_damaged(cache: SpectraCache, tmp_path: Path) -> None:
    stored = Spectrum(np.array([0.5, 1.5]), "gram", "cpu", "")
    assert cache.get("ab" * 32) is None
    cache.put("ab" * 32, stored)
    found = cache.get("ab" * 32)
    assert found is not None and list(found.evals) == [0.5, 1.5] and (found.solver, found.device) == ("gram", "cpu")
    path = next((tmp_path / "cache").rglob("*.npz"))
    whole = path.read_bytes()
    for damaged in (b"", whole[:-30], whole.replace(b"\x00\x00\xf8?", b"\x00\x00\xf9?")):
        path.write_bytes(damaged)
        assert cache.get("ab" * 32) is None


@pytest.mark.slow
def test_a_layer_that_another_one_computes_is_left_for_later(cache: SpectraCache, tmp_path: Path) -> None:
    """While another process holds a claim, the others are solved; then its spectrum is taken from it."""
    tensors = {name: tensor for name, tensor in state().items() if tensor.ndim == 2}
    first = next(iter(tensors.values()))
    key = content_key(first, AnalysisOptions(), convolution=False)
    theirs = Spectrum(np.arange(1.0, 21.0), "gram", "cuda:0")
    holder = f"""
import sys
from pathlib import Path
import numpy as np
from gpusched.commands.esd.solve.cache import SpectraCache, Spectrum
cache = SpectraCache(Path({str(tmp_path / "cache")!r}))
with cache.claim({key!r}) as mine:
    print(mine, flush=True)
    sys.stdin.readline()
    cache.put({key!r}, Spectrum(np.arange(1.0, 21.0), "gram", "cuda:0"))
"""
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == "True\n"
        with cache.claim(key) as mine:
            assert not mine
        source, done = StateSource(tensors), []

        def on_done(count: int) -> None:
            done.append(count)
            if count == len(tensors) - 1 and process.stdin:
                process.stdin.write("go\n")
                process.stdin.flush()

        layers = [Layer(info.name, info) for info in source.infos()]
        found = Pipeline(source, layers, AnalysisOptions(), CPU, cache=cache, on_done=on_done).run()
    assert done == list(range(1, len(tensors) + 1))
    assert isinstance(found[0], Solved) and list(found[0].spectrum.evals) == list(theirs.evals)
    with cache.claim(key) as mine:
        assert mine  # it ended with its holder


def test_where_a_file_system_has_no_locks_nobody_waits_for_ever(
    cache: SpectraCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lockf(fd: int, command: int, length: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(os, "lockf", lockf)
    with cache.claim("ab" * 32) as mine:
        assert mine
