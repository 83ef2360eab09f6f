"""The worker of a user, called: loaded, set up, given items one by one or in batches. Exceptions become text.

An out-of-memory is met here as far as this process can: the same items once more with nothing else running, then half
of them at a time, which is remembered.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import inspect
import io
import os
import select
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

import msgspec

from gpusched.common.errors import GpuschedError
from gpusched.common.text import one_line
from gpusched.pool.messages import Answer, Failure, json_bytes
from gpusched.pool.options import PoolOptions
from gpusched.pool.publication import check_files
from gpusched.pool.worker import Worker

Items = Sequence[tuple[int, bytes]]
_STICKY = ("cuda error", "device-side assert", "illegal memory access", "unspecified launch failure")
_SPARE_BYTES = 64 << 20  # more than before an out-of-memory that may stay in use after it
_WATCHED, _PATIENCE_S = 10, 0.02  # the first answers of a program, and how long a second line may come after each
_QUOTED_BYTES = 400  # at most, of a line that a program should not have written


class SpoiledError(Exception):
    """This process can compute nothing more: a CUDA error that stays, memory that is not freed, a program that is gone.

    `cause` is what was raised. `stage`: `first` if its item may not be to blame, since this process has never worked.
    """

    def __init__(self, text: str, cause: BaseException | None = None, *, stage: str = "item") -> None:
        super().__init__(text)
        self.cause = cause or self
        self.stage = stage


class ProgramError(Exception):
    """The error of one item, as a program has reported it."""


_IN_WORDS = (SpoiledError, ProgramError, GpuschedError)  # our own errors: their text says all
IMPORTS: list[str] = []  # files of workers that are being imported in this process


def load_worker(options: PoolOptions) -> Worker:
    """Import the worker and make one. Raises what the import of the user's module raises."""
    if options.command:
        return ProgramWorker(options.command)
    path, _, name = options.worker.rpartition(":")
    if not path.endswith(".py"):
        module = importlib.import_module(path)
    else:
        sys.path.insert(0, os.path.dirname(path))
        spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(path))[0], path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        IMPORTS.append(path)
        spec.loader.exec_module(module)
        IMPORTS.remove(path)
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part)
    if not inspect.isclass(target):
        return FunctionWorker(target)
    if not issubclass(target, Worker):
        raise GpuschedError(f"{name} derives from no gpusched.Worker", where=path)
    return target()


class FunctionWorker(Worker):
    """A plain function of an item as a worker."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, item: Any) -> Any:
        return self._function(item)


class ProgramWorker(Worker):
    """A program that reads an item a line on its standard input, as JSON, and answers with a line on its output.

    Any other output puts it out of step: whose answer a line is can't be told any more, so this process must end.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._program: subprocess.Popen[bytes] | None = None
        self._answers = 0

    def setup(self, device: str, settings: Mapping[str, Any]) -> None:
        environment = {**os.environ, "GPUSCHED_POOL_SETTINGS": msgspec.json.encode(settings).decode()}
        self._program = subprocess.Popen(
            self._command, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def __call__(self, item: Any) -> Any:
        program = self._program
        assert program is not None
        assert program.stdin is not None
        assert program.stdout is not None
        self._check_silence(program.stdout)
        with suppress(BrokenPipeError):
            program.stdin.write(msgspec.json.encode(item) + b"\n")
            program.stdin.flush()
        if not (line := program.stdout.readline()).endswith(b"\n"):
            ended = f"the program has ended with {program.wait()} in place of an answer"
            raise self._spoiled(f"{ended}; what it wrote to stderr is in the log of this worker")
        try:
            answer = msgspec.json.decode(line)
        except msgspec.DecodeError:
            raise self._out_of_step("no JSON in place of an answer", line) from None
        self._check_silence(program.stdout, _PATIENCE_S if self._answers < _WATCHED else 0.0)
        self._answers += 1
        if isinstance(answer, dict) and answer.keys() == {"error"} and isinstance(answer["error"], str):
            raise ProgramError(answer["error"])
        return answer

    def _check_silence(self, output: IO[bytes], patience_s: float = 0.0) -> None:
        """Raise SpoiledError if the program has written something that no item has asked for."""
        assert isinstance(output, io.BufferedReader)
        select.select([output], [], [], patience_s)
        os.set_blocking(output.fileno(), False)
        unread = output.peek()
        os.set_blocking(output.fileno(), True)
        if unread:
            raise self._out_of_step("more than one line for an item", unread.partition(b"\n")[0])

    def _out_of_step(self, problem: str, line: bytes) -> SpoiledError:
        shown = one_line(line[:_QUOTED_BYTES].decode(errors="replace"), 100)
        return self._spoiled(
            f"the program has written {problem}: '{shown}'; only answers may go to stdout, all else to stderr"
        )

    def _spoiled(self, text: str) -> SpoiledError:
        return SpoiledError(text, stage="item" if self._answers else "first")

    def teardown(self) -> None:
        if self._program is not None:
            self._program.communicate()  # also reads what it says at its end, which it would wait for


class ItemRunner:
    """A worker of a user, and the calls to it, from one thread or from several that share it."""

    def __init__(self, options: PoolOptions, device: str) -> None:
        self.batch_size = max(1, int(options.settings.get("batch_size", 1)))
        self._options, self._device = options, device
        self.worker = Worker()
        self._has_batch = False
        self._turn = threading.Condition()
        self.split_by = ""  # the newest error of a whole batch, whose items were then tried one by one
        self._calls = 0  # that run now
        self._is_exclusive = False
        self._idle_bytes = 0

    def load(self) -> None:
        """Import the worker and set it up. Raises what the user's code raises."""
        self.worker = worker = load_worker(self._options)
        self._options.check_threads(is_safe=worker.thread_safe)
        self._has_batch = type(worker).batch is not Worker.batch
        worker.output_dir = self._options.output
        worker.setup(self._device, self._options.settings)
        self._idle_bytes = used_bytes()

    def run(self, items: Items) -> list[Answer]:
        """Return the outcomes of these items. Raises SpoiledError if this process must end."""
        with self._calling(exclusive=False):
            answers = self._attempt(items)
        if answers is not None:
            return answers
        with self._calling(exclusive=True):
            self._release_memory()
            return self._retry(items)

    def _retry(self, items: Items) -> list[Answer]:
        """Run the items with nothing else in this process, then in halves."""
        answers = self._attempt(items)
        if answers is not None:
            return answers
        self._release_memory()
        if len(items) == 1:
            return [Answer(items[0][0], b"", Failure("oom", "out of memory, with nothing else in this process"))]
        self.batch_size = max(1, min(self.batch_size, len(items)) // 2)
        found: list[Answer] = []
        while len(found) < len(items):
            found += self._retry(items[len(found) : len(found) + self.batch_size])
        return found

    def _attempt(self, items: Items) -> list[Answer] | None:
        """Call the worker. Return the outcomes; None if memory was missing."""
        try:
            values = [msgspec.json.decode(value) for _, value in items]
            results = self.worker.batch(values) if self._has_batch else [self.worker(value) for value in values]
            parts = split_results(results, len(items))
            for part in parts if self._options.sink == "files" else ():
                check_files(part, self._options.output)
            return [Answer(item, _encode(part)) for (item, _), part in zip(items, parts, strict=True)]
        except (KeyboardInterrupt, SpoiledError):
            raise
        except BaseException as error:
            if is_out_of_memory(error):
                return None
            if any(text in str(error).lower() for text in _STICKY):
                raise SpoiledError(str(error), error) from error
            if len(items) == 1:
                return [Answer(items[0][0], b"", failure_of(error))]
            self.split_by = failure_of(error).error
        # one of several: each by itself, to find it
        outcomes = [self._attempt([item]) for item in items]
        return None if None in outcomes else [answer for each in outcomes for answer in each or ()]

    def _release_memory(self) -> None:
        """Give back what the calls have left. Raises SpoiledError if it does not come back."""
        gc.collect()
        if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
            if used_bytes() > self._idle_bytes * 1.1 + _SPARE_BYTES:
                raise SpoiledError("memory does not come back after an out-of-memory")

    @contextmanager
    def _calling(self, *, exclusive: bool) -> Iterator[None]:
        """Call the worker beside the calls of other threads, or with nothing else running."""
        with self._turn:
            self._turn.wait_for(lambda: not self._is_exclusive and not (exclusive and self._calls))
            self._calls += 1
            self._is_exclusive = exclusive
        try:
            yield
        finally:
            with self._turn:
                self._calls -= 1
                self._is_exclusive = False
                self._turn.notify_all()


def split_results(results: Any, count: int) -> Sequence[Any]:
    """Return the results of each item. A dict of lists for all of them is the first one's, and the others have none."""
    if isinstance(results, dict):
        return [results, *({} for _ in range(count - 1))]
    parts = list(results)
    if len(parts) != count:
        raise ValueError(f"batch() has returned {len(parts)} results for {count} items")
    return parts


def _encode(result: Any) -> bytes:
    data = msgspec.json.encode(result, enc_hook=_plain)
    if b"null" in data:  # it may have been NaN
        data = json_bytes(msgspec.to_builtins(result, enc_hook=_plain, str_keys=True))
    return data


def _plain(value: Any) -> Any:
    """Return an array, a tensor or a number of a library as JSON has it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result holds a {type(value).__name__}, which JSON has not: write it to a file, return its path")


def is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "out of memory" in text


def error_text(error: BaseException) -> str:
    """Return an exception in words; of a missing module also where it is missing."""
    text = f"{type(error).__name__}: {error}"
    return f"{text} in {sys.prefix}, where gpusched is" if isinstance(error, ModuleNotFoundError) else text


def failure_of(error: BaseException) -> Failure:
    """Return an exception as text; also one whose own text fails."""
    try:
        if isinstance(error, _IN_WORDS):
            return Failure("error", str(error))
        text = error_text(error)
    except Exception:
        text = type(error).__name__
    kind = "oom" if is_out_of_memory(error) else "error"
    calls = error.__traceback__
    while calls is not None and calls.tb_frame.f_code.co_filename == __file__:  # ours are of no use to the user
        calls = calls.tb_next
    try:
        return Failure(kind, text, "".join(traceback.format_exception(type(error), error, calls)))
    except Exception:
        return Failure(kind, text)


def used_bytes() -> int:
    """Return the GPU memory in use by tensors of this process, as torch counts it; 0 without torch."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.memory_allocated()) if torch is not None and torch.cuda.is_initialized() else 0
