"""Read and solve the layers of one model, several at a time within a bound of memory. Writes no result.

A worker takes the next layer, waits for its bytes, reads it, and solves it. While one solves, the next one reads; as
many solve at a time as there are threads to spare. The bound is that of gpusched.esd.gpu_memory.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gpusched.esd.gpu_memory import LayerNeed, host_limit, layer_need
from gpusched.esd.options import AnalysisOptions

from ..read.layers import Layer
from ..read.tensors import TensorSource
from .budget import Budget, LazyTensor
from .cache import SpectraCache, content_key
from .fallback import NoRoom, fallback
from .lapack import NotConverged
from .randomized import bulk, shuffled
from .spectrum import NotFinite, Spectrum, spectrum

_LARGE = 64 << 20  # bytes of a layer from which its routines use many threads well
_LANES = 4  # layers solved at a time, at most
_GPU_LANES = 2
_GPU_THREADS = 4  # of the CPU; the card does the work
_POLL_S = 0.05  # interval between two looks at a layer that another process computes
_ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Solved:
    """A layer's spectrum; with --randomize also that of its shuffled entries, and the edges of a random matrix's."""

    spectrum: Spectrum
    chance: Spectrum | None = None
    bulk: tuple[float, float] | None = None


Result = Solved | str  # or the reason why there is none


def need_of(layer: Layer, options: AnalysisOptions) -> LayerNeed:
    """Return the memory that a layer takes. With --randomize its shuffled copy lies beside it."""
    rows, columns = layer.matrix
    return layer_need(
        layer.matrix,
        _ELEMENT_BYTES.get(layer.tensor.dtype, 1),
        solver=options.solver,
        matrices=layer.elements // max(1, rows * columns),
        copies=2 if options.randomize else 1,
    )


def solve_layer(
    tensor: LazyTensor,
    layer: Layer,
    options: AnalysisOptions,
    device: torch.device,
    compute: Callable[..., Spectrum] = spectrum,
) -> Result:
    """Solve one layer in the first way for which there is memory. `compute` is as spectrum.spectrum, for tests."""

    def solve(tensor: LazyTensor) -> Spectrum:
        result, note = fallback(
            lambda where, block: compute(tensor, options, convolution=layer.convolution, device=where, block=block),
            device,
        )
        notes = "; ".join(text for text in (result.note, note) if text)
        return Spectrum(result.evals, result.solver, result.device, notes)

    try:
        own = solve(tensor)
        if not options.randomize:
            return Solved(own)
        edges = bulk(tensor.get(), layer, farms=options.farms)
        return Solved(own, solve(LazyTensor(lambda: shuffled(tensor.get(), layer.name))), edges)
    except NotFinite as error:
        return str(error)
    except NotConverged as error:
        return f"no eigenvalues: {error}"
    except NoRoom as error:
        return f"{error}: it takes {need_of(layer, options).host >> 20} MiB"


class Pipeline:
    """One pass over the layers of one model."""

    def __init__(
        self,
        source: TensorSource,
        layers: Sequence[Layer],
        options: AnalysisOptions,
        device: torch.device,
        *,
        cache: SpectraCache | None = None,
        on_done: Callable[[int], object] = lambda done: None,
    ) -> None:
        """`on_done` gets the number of layers that are done, from any thread, one call at a time."""
        self._source = source
        self._layers = layers
        self._options = options
        self._device = device
        self._cache = None if options.randomize else cache
        self._on_done = on_done
        self._needs = [need_of(layer, options) for layer in layers]
        self._largest = max((need.host for need in self._needs), default=0)
        self._budget = Budget(host_limit(self._largest))
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._next = 0
        self._later: deque[tuple[int, str]] = deque()  # layers that another process computes, and their keys
        self._results: dict[int, Result] = {}
        self._failure: BaseException | None = None

    def run(self) -> list[Result]:
        """Return a result for each layer. Raises ModelError for a damaged file, Poisoned for a lost card."""
        threads = torch.get_num_threads()
        is_cuda = self._device.type == "cuda"
        if not self._options.parallel_gpu or len(self._layers) < 2:
            self._work(threading.Semaphore(1), 0)
        else:
            total = min(threads, _GPU_THREADS) if is_cuda else threads
            lanes = self._gpu_lanes() if is_cuda else min(total, 2 if self._largest > _LARGE else _LANES)
            solving = threading.Semaphore(lanes)
            workers = [
                threading.Thread(target=self._work, args=(solving, max(1, total // lanes)), daemon=True)
                for _ in range(lanes + 1)
            ]
            try:
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
            except BaseException as error:
                self._failure = error
                raise
            finally:
                torch.set_num_threads(threads)
        if self._failure is not None:
            raise self._failure
        return [self._results[index] for index in range(len(self._layers))]

    def _gpu_lanes(self) -> int:
        """Return 2 if the card has room for any two layers; else one of them would find too little beside the other."""
        largest = max(need.gpu for need in self._needs)
        return _GPU_LANES if _GPU_LANES * largest <= torch.cuda.mem_get_info(self._device)[0] else 1

    def _work(self, solving: threading.Semaphore, threads: int) -> None:
        if threads:
            torch.set_num_threads(threads)
        stream: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        try:
            if self._device.type == "cuda" and threads:
                stream = torch.cuda.stream(torch.cuda.Stream(self._device))
            with stream:
                while self._failure is None and self._do_one(solving):
                    pass
        except BaseException as error:
            self._failure = self._failure or error

    def _do_one(self, solving: threading.Semaphore) -> bool:
        """Take a layer and solve it; return False if none is left."""
        with self._turn:
            if self._next < len(self._layers):
                index, key = self._next, ""
                self._next += 1
            elif self._later:
                index, key = self._later.popleft()
            else:
                return False
            need = self._needs[index]
            self._budget.take(need.host)
        layer = self._layers[index]
        early = 0 if self._options.randomize else need.stored  # a shuffled copy is made of it later
        tensor = LazyTensor(
            lambda: self._source.read(layer.tensor.name, layer.expert), lambda: self._budget.give_back(early)
        )
        try:
            result = self._solve(index, key, tensor, solving) if self._failure is None else None
        finally:
            tensor.drop()
            self._budget.give_back(need.host - early)
        if result is not None:
            with self._state:
                self._results[index] = result
                self._on_done(len(self._results))
        return True

    def _solve(self, index: int, key: str, tensor: LazyTensor, solving: threading.Semaphore) -> Result | None:
        """Return the result; None if another process computes it, so that it has to be looked for later."""
        layer = self._layers[index]
        if self._cache is None:
            tensor.get()  # before its turn to be solved
            with solving:
                return solve_layer(tensor, layer, self._options, self._device)
        if key and (stored := self._cache.get(key)):
            return Solved(stored)
        has_waited = bool(key)
        key = key or content_key(tensor.get(), self._options, convolution=layer.convolution)
        with self._cache.claim(key) as is_mine:
            if stored := self._cache.get(key):
                return Solved(stored)
            if is_mine:
                tensor.get()
                with solving:
                    result = solve_layer(tensor, layer, self._options, self._device)
                if isinstance(result, Solved) and not result.spectrum.note:
                    self._cache.put(key, result.spectrum)
                return result
        if has_waited:
            time.sleep(_POLL_S)
        self._later.append((index, key))
        return None
