"""`python -m gpusched.commands.worker DIRECTORY`: load the worker of the pool there, and work on the items it gets."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from contextlib import suppress

from gpusched.commands.worker.link import Link

from gpusched.common.files import write_atomically
from gpusched.common.quantities import parse_duration
from gpusched.pool.execution import ItemRunner, SpoiledError, failure_of, own_memory
from gpusched.pool.messages import Broken, Hello, Ready
from gpusched.pool.options import OPTIONS, PoolOptions


def main() -> int:
    directory = sys.argv[1]
    with open(f"{directory}/{OPTIONS}", encoding="utf-8") as file:
        options = PoolOptions.from_json(file.read())
    device = os.environ.get("GPUSCHED_DEVICES", "")
    hello = Hello(int(os.environ.get("GPUSCHED_JOB_ID", "0")), device, os.getpid(), False)
    link = Link(directory, hello, parse_duration(options.orphan_timeout), give_up)
    runner = ItemRunner(options, "cuda:0" if device else "cpu")
    begin_s = time.monotonic()
    try:
        runner.load()
    except BaseException as error:
        return end_broken(link, "load", error)
    link.send(Ready(time.monotonic() - begin_s, *own_memory()), is_ready=True)
    report_ready()
    for _ in range(options.threads - 1):
        threading.Thread(target=serve_or_end, args=(link, runner), daemon=True).start()
    code = serve(link, runner)
    if code == 0:
        runner.close()
    return code


def serve(link: Link, runner: ItemRunner) -> int:
    """Work on items until there are no more; return the exit code of this process."""
    try:
        runner.prepare_thread()
        while items := link.take(runner.batch_size):
            link.answer(runner.run(items), runner.batch_size)
    except SpoiledError as error:
        return end_broken(link, "item", error.cause)
    except BaseException as error:
        return end_broken(link, "load", error)
    return 0


def serve_or_end(link: Link, runner: ItemRunner) -> None:
    """Serve in one more thread, whose failure ends the process as that of the first one does."""
    if code := serve(link, runner):
        os._exit(code)


def end_broken(link: Link, stage: str, error: BaseException) -> int:
    """Tell the coordinator why this worker ends, print it, and return the exit code."""
    traceback.print_exception(type(error), error, error.__traceback__)
    sys.stderr.flush()
    link.send(Broken(stage, failure_of(error)))
    return 1


def report_ready() -> None:
    """Report to the dispatcher, which learns what memory a job needs, that this one has all that it loads."""
    if path := os.environ.get("GPUSCHED_PROGRESS"):
        with suppress(OSError):
            write_atomically(path, b'{"ready": true}')


def give_up() -> None:
    """End this process, which nobody wants the results of."""
    print("gpusched: no coordinator has come back, so this worker ends", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
