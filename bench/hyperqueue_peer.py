"""HyperQueue through its Python package: `python hyperqueue_peer.py JOBS AT_ONCE DIRECTORY COMMAND`.

A server and a worker in this process; every job writes its stdout and stderr to files. Prints a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(jobs: int, at_once: int, directory: str, command: str) -> None:
    from hyperqueue import Job  # type: ignore[import-not-found]
    from hyperqueue.cluster import LocalCluster, WorkerConfig  # type: ignore[import-not-found]

    work_dir = Path(directory).resolve()
    out = os.dup(1)
    os.dup2(2, 1)  # the server prints a banner
    (work_dir / "server").mkdir()
    (work_dir / "files").mkdir()
    cluster = LocalCluster(server_dir=str(work_dir / "server"), worker_config=WorkerConfig(cores=at_once))
    job = Job(default_workdir=str(work_dir / "files"), max_fails=None)
    for _ in range(jobs):
        job.program(["bash", "-o", "pipefail", "-c", command])
    client = cluster.client()
    began = time.time()
    succeeded = client.wait_for_jobs([client.submit(job)], raise_on_error=False)
    # it reports the end only once a second: the newest file is more exact
    files = list(os.scandir(work_dir / "files"))
    ended = max(entry.stat().st_ctime for entry in files)
    os.write(
        out, json.dumps({"seconds": ended - began, "failed": 0 if succeeded and len(files) == 2 * jobs else 1}).encode()
    )
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
