"""A dispatcher that kills itself at a named step: `python crash_driver.py LIST STEP COUNT`. Used by test_crash.py."""

from __future__ import annotations

import os
import signal
import sys

from gpusched import api
from gpusched.config import layers
from gpusched.dispatcher import Hooks
from gpusched.lists.submit import SubmitOptions, read
from gpusched.operations.run import RunQueue


def main(path: str, step: str, count: int) -> int:
    left = count

    def at(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    settings = layers.load().settings
    options = SubmitOptions(settings, os.fsencode(os.getcwd()))
    with open(path, "rb") as file:
        jobs = read(file.read(), options, path)
    at("read")
    with api.open_devices(settings) as devices, RunQueue.for_file(path, settings) as queue:
        at("made")
        queue.submit(jobs, options)
        at("submitted")
        return queue.dispatch(options, devices, hooks=Hooks(step=at))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
