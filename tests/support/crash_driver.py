"""A dispatcher that kills itself at a named step: `python crash_driver.py LIST STEP COUNT [standing]`.

Used by test_crash.py. The queue of a standing one gets its jobs by a submission of its own for each line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from gpusched import api
from gpusched.config import layers
from gpusched.dispatcher import Hooks
from gpusched.host.queue import queue_dirs
from gpusched.lists.jobfile import JobFile
from gpusched.lists.submit import SubmitOptions, read
from gpusched.operations.box.devices import open_devices
from gpusched.operations.run import submit
from gpusched.operations.run.run import RunQueue


def main(path: str, step: str, count: int, kind: str = "") -> int:
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
    if kind:
        return dispatch_standing(jobs, options, at)
    with api.open_devices(settings) as devices, RunQueue.for_file(path, settings) as queue:
        at("made")
        queue.submit(jobs, options)
        at("submitted")
        return queue.dispatch(options, devices, hooks=Hooks(step=at))


def dispatch_standing(jobs: JobFile, options: SubmitOptions, at: Callable[[str], None]) -> int:
    queue_dir = queue_dirs.locate("gpusched-runs/list")
    submit.make_queue(queue_dir)
    at("made")
    for spec in jobs.specs:
        wishes = submit.Wishes(once=str(spec.line), export="none")
        submit.add_jobs(queue_dir, jobs._replace(specs=(spec,)), options, wishes)
        at("submitted")
    with RunQueue(queue_dir) as queue, open_devices(options.settings, 0) as devices:
        hooks = Hooks(step=at, follow=True, idle_exit_s=0.2)
        return queue.dispatch(options, devices, hooks=hooks, submitted=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
