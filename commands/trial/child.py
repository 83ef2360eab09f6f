"""One worker on trial: it loads the user's worker, then runs as many batches as its bench asks for."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from gpusched.common.text import one_line
from gpusched.pool.execution import ItemRunner, SpoiledError, error_text, failure_of, is_out_of_memory
from gpusched.pool.tuner.record import TunePlan
from gpusched.pool.tuner.search import TrialEndedError, TrialOutcome

_NAMED = 40  # at most, characters of an item in a message


class LoadedWorker:
    """The user's worker, with the items for its batches."""

    def __init__(self, directory: str, batch_size: int, threads: int, number: int) -> None:
        options = TunePlan.read(directory).options
        self._has_gpu = bool(os.environ.get("GPUSCHED_DEVICES"))
        self.runner = ItemRunner(
            replace(options, batch_size=batch_size, threads=threads), "cuda:0" if self._has_gpu else "cpu"
        )
        self._batch_size, self._threads = batch_size, threads
        self._items = {name: _cycle(f"{directory}/{name}.jsonl", number) for name in ("sample", "largest")}
        self._taking = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, initializer=lambda: self.runner.worker.thread_setup())

    def run(self, batches: int, name: str) -> dict[str, Any]:
        """Run batches in all threads; return the seconds of each and of all, and the peak memory.

        Raises TrialEndedError where items fail.
        """
        left = itertools.count()
        is_over = threading.Event()

        def work() -> list[float]:
            seconds = []
            try:
                while next(left) < batches and not is_over.is_set():
                    with self._taking:
                        items = list(itertools.islice(self._items[name], self._batch_size))
                    began = time.perf_counter()
                    self._run_batch(items)
                    seconds.append(time.perf_counter() - began)
            except BaseException:
                is_over.set()
                raise
            return seconds

        began = time.perf_counter()
        running = [self._pool.submit(work) for _ in range(self._threads)]
        seconds = [each for future in running for each in future.result()]
        return {
            "batches": seconds,
            "seconds": time.perf_counter() - began,
            "peak_bytes": self.runner.worker.memory_bytes(),
        }

    def _run_batch(self, items: list[tuple[int, bytes]]) -> None:
        try:
            answers = self.runner.run(items)
        except SpoiledError as error:
            failure = failure_of(error.cause)
            print(failure.traceback or failure.error, file=sys.stderr, flush=True)
            raise self.failure(failure.kind == "oom", failure.error, items) from error
        for item, answer in zip(items, answers, strict=True):
            if answer.failure is not None:
                raise self.failure(answer.failure.kind == "oom", answer.failure.error, [item])
        if self.runner.batch_size < self._batch_size:  # it has helped itself with smaller ones
            raise TrialEndedError(TrialOutcome.OUT_OF_MEMORY, "out of memory")

    def failure(self, is_memory: bool, text: str, items: Sequence[tuple[int, bytes]] = ()) -> TrialEndedError:
        """Return the end of a trial, at these items. Memory of the host is no limit of a GPU."""
        if is_memory and self._has_gpu and text.startswith("MemoryError"):
            is_memory, text = False, f"the memory of the host does not suffice: {text}"
        names = [one_line(value.decode(errors="replace"), _NAMED) for _, value in items]
        if names:
            text = f"{f'items {names[0]} to {names[-1]}' if len(names) > 1 else f'item {names[0]}'}: {text}"
        return TrialEndedError(TrialOutcome.OUT_OF_MEMORY if is_memory else TrialOutcome.FAILED, text)


def _cycle(path: str, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield the items of a file again and again; each worker begins with another one."""
    with open(path, "rb") as file:
        items = list(enumerate(file.read().splitlines()))
    return itertools.islice(itertools.cycle(items), number, None)


def main() -> int:
    directory = sys.argv[1]
    batch_size, threads, number, commands, answers = map(int, sys.argv[2:])
    worker = LoadedWorker(directory, batch_size, threads, number)
    with os.fdopen(commands, "rb") as requests, os.fdopen(answers, "wb") as out:

        def answer(document: dict[str, Any]) -> None:
            out.write(json.dumps(document).encode() + b"\n")
            out.flush()

        try:
            worker.runner.load()
            answer({"is_ready": True})
            for line in requests:
                request = json.loads(line)
                answer(worker.run(request["batches"], request["items"]))
            worker.runner.worker.teardown()
        except BrokenPipeError:
            return 0
        except BaseException as error:
            if not isinstance(error, TrialEndedError):
                traceback.print_exception(type(error), error, error.__traceback__)
                error = worker.failure(is_out_of_memory(error), error_text(error))
            answer({"failed": error.outcome.value, "text": str(error)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
