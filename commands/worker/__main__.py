"""`python -m gpusched.commands.worker DIRECTORY`: load the worker of the pool there, and work on the items it gets."""

from __future__ import annotations

import os
import sys
import threading
import time

from gpusched.commands.worker.link import Link

from gpusched.common.progress_file import ProgressFile
from gpusched.common.quantities import parse_duration
from gpusched.pool.execution import ItemRunner, SpoiledError, failure_of
from gpusched.pool.messages import CPU, Broken, Hello, Ready
from gpusched.pool.options import PoolOptions

REPORT_S = 2.0


def main() -> int:
    directory = sys.argv[1]
    options = PoolOptions.read(directory)
    device = os.environ.get("GPUSCHED_DEVICES") or CPU
    hello = Hello(int(os.environ.get("GPUSCHED_JOB_ID", "0")), device, False)
    link = Link(directory, hello, parse_duration(options.orphan_timeout), give_up)
    runner = ItemRunner(options, CPU if device == CPU else "cuda:0")
    report = SelfReport(runner)
    begin_s = time.monotonic()
    try:
        report(is_ready=False)
        runner.load()
    except BaseException as error:
        return end_broken(link, "load", error)
    link.send(Ready(time.monotonic() - begin_s), is_ready=True)
    for _ in range(options.threads - 1):
        threading.Thread(target=serve_or_end, args=(link, runner, report), daemon=True).start()
    code = serve(link, runner, report)
    if code == 0:
        runner.worker.teardown()
    return code


def serve(link: Link, runner: ItemRunner, report: SelfReport) -> int:
    """Work on items until there are no more; return the exit code of this process."""
    try:
        runner.worker.thread_setup()
        while items := link.take(runner.batch_size):
            answers, split_by, runner.split_by = runner.run(items), runner.split_by, ""
            link.answer(answers, runner.batch_size, split_by)
            report(len(items), is_ready=True)
    except SpoiledError as error:
        return end_broken(link, error.stage, error.cause)
    except BaseException as error:
        return end_broken(link, "load", error)
    return 0


def serve_or_end(link: Link, runner: ItemRunner, report: SelfReport) -> None:
    """Serve in one more thread, whose failure ends the process as that of the first one does."""
    if code := serve(link, runner, report):
        os._exit(code)


def end_broken(link: Link, stage: str, error: BaseException) -> int:
    """Tell the coordinator why this worker ends, print it, and return the exit code."""
    failure = failure_of(error)
    print(failure.traceback or f"error: {failure.error}", file=sys.stderr, flush=True)
    link.send(Broken(stage, failure))
    return 1


class SelfReport:
    """The report of this worker: to people, and to the dispatcher, which learns how much memory a job needs."""

    def __init__(self, runner: ItemRunner) -> None:
        self._runner = runner
        self._file = ProgressFile("items")
        self._again_at = self._begin_at = 0.0
        self._items = 0  # the first ones, which begin the time, not among them

    def __call__(self, items: int = 0, *, is_ready: bool) -> None:
        """Report that so many more items are done, and the memory in use, every few seconds."""
        self._items += items if self._begin_at else 0
        self._begin_at = self._begin_at or (time.monotonic() if items else 0.0)
        if time.monotonic() >= self._again_at:
            self._again_at = time.monotonic() + REPORT_S if is_ready else 0.0
            memory = {"memory_bytes": used} if (used := self._runner.worker.memory_bytes()) else {}
            rate = self._items / max(time.monotonic() - self._begin_at, 1e-3)
            message = {"message": f"{rate:.3g} items/s"} if self._items else {}
            self._file.report(ready=is_ready, **message, **memory)


def give_up() -> None:
    """End this process, which nobody wants the results of."""
    print("gpusched: no coordinator has come back, so this worker ends", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
