"""A bare Popen loop, the floor of a measurement: `python floor.py JOBS AT_ONCE DIRECTORY COMMAND`.

Runs COMMAND with the shell and flags that gpusched uses, JOBS times, AT_ONCE at a time, each in a session of its own
with SLOT in its environment, and starts the next one at once. Prints a JSON object. Standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main(jobs: int, at_once: int, directory: str, command: str) -> None:
    argv = ["bash", "-o", "pipefail", "-c", command]
    running: dict[int, tuple[subprocess.Popen[bytes], str]] = {}
    free = [str(slot) for slot in range(at_once)]
    failed = started = 0
    began = time.perf_counter()
    while started < jobs or running:
        while free and started < jobs:
            slot = free.pop()
            process = subprocess.Popen(
                argv,
                cwd=directory,
                env={**os.environ, "SLOT": slot},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            running[process.pid] = process, slot
            started += 1
        pid, status = os.wait()
        process, slot = running.pop(pid)
        process.returncode = status
        failed += status != 0
        free.append(slot)
    print(json.dumps({"seconds": time.perf_counter() - began, "failed": failed}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
