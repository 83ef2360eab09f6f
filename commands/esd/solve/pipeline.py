"""Read and solve the layers of one model, several at a time within a bound of memory. Writes no result.

A worker takes the next layer, waits for its bytes, reads it, and solves it. While one solves, the next one reads; as
many solve at a time as there are threads to spare. The bound is that of gpusched.esd.gpu_memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from gpusched.esd.gpu_memory import LayerNeed, host_limit, layer_need
from gpusched.esd.options import AnalysisOptions

from ..read.tensors import LazyTensor, TensorSource, read_matrix
from ..weights.layers import Layer
from .cache import SpectraCache, content_key
from .fallback import NoRoom, fallback
from .randomized import bulk, shuffled
from .spectrum import NotConverged, NotFinite, Spectrum, spectrum

_LARGE = 64 << 20  # bytes of a layer from which its routines use many threads well
_LANES = 4  # layers solved at a time, at most
_GPU_LANES = 2
_POLL_S = 0.05  # interval between two looks at a layer that another process computes


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
        getattr(torch, layer.tensor.dtype).itemsize,
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
    """Solve one layer on the device or, if that cannot do it, on the CPU. `compute` is as spectrum, for tests."""

    def solve(tensor: LazyTensor) -> Spectrum:
        result, note = fallback(
            lambda where: compute(tensor, options, convolution=layer.convolution, device=where), device
        )
        return replace(result, note="; ".join(filter(None, (result.note, note))))

    try:
        own = solve(tensor)
        if not np.isfinite(own.evals[-1:]).all():
            return "its eigenvalues are too great for float64"
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


class Budget:
    """Bytes that are taken in the order of the requests. A request that is alone is always granted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._turn = threading.Lock()
        self._condition = threading.Condition()

    @contextmanager
    def taken(self, amount: int) -> Iterator[None]:
        """Take so many bytes once they are free, or nothing else is taken; give them back at the end."""
        with self._turn, self._condition:
            self._condition.wait_for(lambda: not self._taken or self._taken + amount <= self._limit)
            self._taken += amount
        try:
            yield
        finally:
            with self._condition:
                self._taken -= amount
                self._condition.notify_all()


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
        """`on_done` gets the number of layers that are done."""
        self._source = source
        self._layers = layers
        self._options = options
        self._device = device
        self._cache = None if options.randomize else cache
        self._on_done = on_done
        self._needs = [need_of(layer, options) for layer in layers]
        self._largest = max((need.host for need in self._needs), default=0)
        self._budget = Budget(host_limit(self._largest))
        self._threads: int = torch.get_num_threads()
        self._lanes = self._count_lanes()
        self._solving = threading.Semaphore(self._lanes)
        self._keys: dict[int, str] = {}  # in the cache, of the layers that have been read

    def _count_lanes(self) -> int:
        """Return how many layers are solved at a time.

        On a card 2 if there is room for any two layers; else one of them would find too little beside the other.
        """
        if not self._options.parallel_gpu or len(self._layers) < 2:
            return 1
        if self._device.type == "cuda":
            free: int = torch.cuda.mem_get_info(self._device)[0]
            return _GPU_LANES if _GPU_LANES * max(need.gpu for need in self._needs) <= free else 1
        return min(self._threads, 2 if self._largest > _LARGE else _LANES)

    def run(self) -> list[Result]:
        """Return a result for each layer. Raises ModelError for a damaged file, Poisoned for a lost card."""
        indexes = range(len(self._layers))
        results: dict[int, Result] = {}
        try:
            with ThreadPoolExecutor(self._lanes + 1, initializer=self._prepare_thread) as pool:
                while waiting := [index for index in indexes if index not in results]:
                    for index, result in zip(waiting, pool.map(self._solve, waiting), strict=True):
                        if result is not None:
                            results[index] = result
                            self._on_done(len(results))
                    if len(results) < len(indexes):
                        time.sleep(_POLL_S)
        finally:
            torch.set_num_threads(self._threads)
        return [results[index] for index in indexes]

    def _prepare_thread(self) -> None:
        torch.set_num_threads(max(1, self._threads // self._lanes))
        if self._device.type == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream(self._device))

    def _solve(self, index: int) -> Result | None:
        """Return the result of a layer, from the cache if it is there; None while another process computes it."""
        layer = self._layers[index]
        tensor = LazyTensor(lambda: read_matrix(self._source, layer.tensor.name, layer.expert))
        with self._budget.taken(self._needs[index].host):
            if self._cache is None:
                return self._compute(layer, tensor)
            if index not in self._keys:
                self._keys[index] = content_key(tensor.get(), self._options, convolution=layer.convolution)
            key = self._keys[index]
            with self._cache.claim(key) as is_mine:
                if stored := self._cache.get(key):
                    return Solved(stored)
                if not is_mine:
                    return None
                result = self._compute(layer, tensor)
                if isinstance(result, Solved) and not result.spectrum.note:
                    self._cache.put(key, result.spectrum)
                return result

    def _compute(self, layer: Layer, tensor: LazyTensor) -> Result:
        tensor.get()  # before its turn to be solved
        with self._solving:
            return solve_layer(tensor, layer, self._options, self._device)
