"""The layers of one model, read and solved: consecutive ones at a time, within a bound of memory. Writes no result.

A worker takes the next layer, waits for its bytes, reads it, and solves it. While one solves, the next one reads; as
many solve at a time as there are threads to spare for. The bytes of a layer are its tensor and its Gram matrix in
float64; in memory at once are at most 1.35 times those of the greatest layer, or LEAST.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..options import Options
from ..read.layers import Layer
from ..read.tensors import TensorSource
from .budget import Budget, Held
from .cache import SpectraCache, content_key
from .fallback import NoRoom, fallback
from .lapack import NotConverged
from .randomized import bulk, shuffled
from .spectrum import BLOCK, NotFinite, Spectrum, spectrum

LEAST = 256 << 20  # bytes; up to here more layers at a time cost nobody anything
AHEAD = 1.35

_BIG = 64 << 20  # bytes of a layer from which its routines use many threads well
_LANES = 4  # layers solved at a time, at most
_GPU_LANES = 2
_GPU_THREADS = 4  # of the CPU; the card does the work
_AGAIN_S = 0.05  # how often a layer that another process computes is looked for


@dataclass(frozen=True, slots=True)
class Solved:
    """A layer's spectrum, and with --randomize what chance would give."""

    spectrum: Spectrum
    chance: Spectrum | None = None
    bulk: tuple[float, float] | None = None


Result = Solved | str  # or why there is none


def need(layer: Layer, options: Options) -> tuple[int, int]:
    """Bytes of host memory that this layer takes: its tensor, and its Gram matrix or float64 copies."""
    rows, columns = layer.matrix
    width = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}.get(layer.tensor.dtype, 1)
    work = rows * columns * 16 if options.solver == "svd" else min(rows, columns) ** 2 * 8
    return layer.elements * width, work


def gpu_need(layer: Layer, options: Options) -> int:
    """Bytes of GPU memory: as of the host, and what the eigensolver copies and works in."""
    tensor, work = need(layer, options)
    return tensor + 3 * work + 2 * BLOCK * min(layer.matrix) * 8


def solve_layer(
    held: Held, layer: Layer, options: Options, device: torch.device, compute: Callable[..., Spectrum] = spectrum
) -> Result:
    """One layer, in whichever way there is memory for. `compute`: as spectrum.spectrum, for tests."""

    def once(of: Held) -> Spectrum:
        found, note = fallback(
            lambda place, block: compute(of, options, convolution=layer.convolution, device=place, block=block), device
        )
        notes = "; ".join(text for text in (found.note, note) if text)
        return Spectrum(found.evals, found.solver, found.device, notes)

    try:
        found = once(held)
        if not options.randomize:
            return Solved(found)
        edges = bulk(held.get(), layer, farms=options.farms)
        return Solved(found, once(Held(lambda: shuffled(held.get(), layer.name))), edges)
    except NotFinite as error:
        return str(error)
    except NotConverged as error:
        return f"no eigenvalues: {error}"
    except NoRoom as error:
        return f"{error}: it takes {sum(need(layer, options)) >> 20} MiB"


class Pipeline:
    """One pass over the layers of one model."""

    def __init__(
        self,
        source: TensorSource,
        layers: Sequence[Layer],
        options: Options,
        device: torch.device,
        *,
        cache: SpectraCache | None = None,
        on_done: Callable[[int], object] = lambda done: None,
    ) -> None:
        """`on_done` is told how many layers are done, by any thread, one at a time."""
        self._source = source
        self._layers = layers
        self._options = options
        self._device = device
        self._cache = None if options.randomize else cache
        self._on_done = on_done
        needs = [sum(need(layer, options)) for layer in layers]
        self._largest = max(needs, default=0)
        self._budget = Budget(max(LEAST, int(AHEAD * self._largest)))
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._next = 0
        self._later: deque[tuple[int, str]] = deque()  # layers that another process computes, and their keys
        self._found: dict[int, Result] = {}
        self._failed: BaseException | None = None
        self._stack: tuple[str, torch.Tensor] | None = None

    def run(self) -> list[Result]:
        """A result for each layer. Raises ModelError for a file that fails, Poisoned, and what is nobody's fault."""
        threads = torch.get_num_threads()
        cuda = self._device.type == "cuda"
        if not self._options.parallel or len(self._layers) < 2:
            self._work(threading.Semaphore(1), 0)
        else:
            total = min(threads, _GPU_THREADS) if cuda else threads
            lanes = self._gpu_lanes() if cuda else min(total, 2 if self._largest > _BIG else _LANES)
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
                self._failed = error
                raise
            finally:
                torch.set_num_threads(threads)
        if self._failed is not None:
            raise self._failed
        return [self._found[index] for index in range(len(self._layers))]

    def _gpu_lanes(self) -> int:
        """Two layers at a time only if the card has room for any two: one would find too little beside the other."""
        greatest = max(gpu_need(layer, self._options) for layer in self._layers)
        return _GPU_LANES if _GPU_LANES * greatest <= torch.cuda.mem_get_info(self._device)[0] else 1

    def _work(self, solving: threading.Semaphore, threads: int) -> None:
        if threads:
            torch.set_num_threads(threads)
        stream: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        try:
            if self._device.type == "cuda" and threads:
                stream = torch.cuda.stream(torch.cuda.Stream(self._device))
            with stream:
                while self._failed is None and self._one(solving):
                    pass
        except BaseException as error:
            self._failed = self._failed or error

    def _one(self, solving: threading.Semaphore) -> bool:
        """Take a layer and solve it; False if none is left."""
        with self._turn:
            if self._next < len(self._layers):
                index, key = self._next, ""
                self._next += 1
            elif self._later:
                index, key = self._later.popleft()
            else:
                return False
            tensor, work = need(self._layers[index], self._options)
            self._budget.take(tensor + work)
        held = Held(lambda: self._read(self._layers[index]), lambda: self._budget.give(tensor))
        try:
            result = self._solve(index, key, held, solving) if self._failed is None else None
        finally:
            held.drop()
            self._budget.give(work)
        if result is not None:
            with self._state:
                self._found[index] = result
                self._on_done(len(self._found))
        return True

    def _solve(self, index: int, key: str, held: Held, solving: threading.Semaphore) -> Result | None:
        """The result; None if another process computes it, and it is to be looked for later."""
        layer = self._layers[index]
        if self._cache is None:
            held.get()  # before its turn to be solved
            with solving:
                return solve_layer(held, layer, self._options, self._device)
        if key and (known := self._cache.get(key)):
            return Solved(known)
        waited = bool(key)
        key = key or content_key(held.get(), self._options, convolution=layer.convolution)
        with self._cache.claim(key) as mine:
            if known := self._cache.get(key):
                return Solved(known)
            if mine:
                held.get()
                with solving:
                    result = solve_layer(held, layer, self._options, self._device)
                if isinstance(result, Solved) and not result.spectrum.note:
                    self._cache.put(key, result.spectrum)
                return result
        if waited:
            time.sleep(_AGAIN_S)
        self._later.append((index, key))
        return None

    def _read(self, layer: Layer) -> torch.Tensor:
        """A layer's tensor. A source that cannot give one expert alone gives the stack once, for all of them."""
        if layer.expert is None:
            return self._source.read(layer.tensor.name)
        if (read_part := getattr(self._source, "read_part", None)) is not None:
            found: torch.Tensor = read_part(layer.tensor.name, layer.expert)
            return found
        with self._state:
            if self._stack is None or self._stack[0] != layer.tensor.name:
                self._stack = None
                self._stack = (layer.tensor.name, self._source.read(layer.tensor.name))
            return self._stack[1][layer.expert]
