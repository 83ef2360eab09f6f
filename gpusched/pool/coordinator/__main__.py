"""`python -m gpusched.pool.coordinator DIRECTORY`: coordinate the pool whose queue has its local state there."""

from __future__ import annotations

import json
import sys
import time
import traceback

from gpusched.common.errors import EXIT_TERMINATED
from gpusched.host.queue.queue_dirs import QueueDir
from gpusched.host.store.pool.items import ItemStore
from gpusched.pool.coordinator.crew import Crew
from gpusched.pool.coordinator.growth import Growth
from gpusched.pool.coordinator.ledger import Ledger
from gpusched.pool.coordinator.loop import Coordinator
from gpusched.pool.coordinator.peers import Peers
from gpusched.pool.coordinator.progress import FILE as PROGRESS
from gpusched.pool.coordinator.progress import PoolProgress
from gpusched.pool.coordinator.publisher import Publisher
from gpusched.pool.coordinator.worker_jobs import WorkerJobs
from gpusched.pool.files import PoolPlan, items_path, writing

_STEP_S = 0.1


def main() -> int:
    state = sys.argv[1]
    plan = PoolPlan.read(state)
    queue_dir = QueueDir(plan.queue, state)
    path = items_path(plan, queue_dir)
    while True:
        with writing(path) as is_alone:
            if is_alone:
                with ItemStore(path) as store:
                    return coordinate(plan, queue_dir, store)
        time.sleep(_STEP_S)  # a start of the pool reads the items


def coordinate(plan: PoolPlan, queue_dir: QueueDir, store: ItemStore) -> int:
    """Run the coordinator to its end. What it fails at is for people to see; another try would fail as well."""
    store.write("problem", "")
    stable = json.loads(store.read("stable") or "{}")
    jobs = WorkerJobs(queue_dir, on_cpu=not plan.gpus)
    limit = plan.max_workers_per_gpu if jobs.can_share else 1
    workers = plan.cpu_count if plan.cpu_workers else plan.workers_per_gpu
    growth = Growth(plan.gpus or 1, max(limit, workers), workers=workers, stable=stable)
    crew = Crew(jobs, growth, capacity=plan.capacity)
    publisher = Publisher(plan.publication)
    try:
        with publisher, Peers(queue_dir.state) as peers:
            ledger = Ledger(store, plan)
            progress = PoolProgress(f"{plan.output}/{PROGRESS}", ledger.total - ledger.left, publisher.send)
            coordinator = Coordinator(plan, ledger, peers, crew, progress)
            coordinator.run()
            if coordinator.is_stopped:
                return EXIT_TERMINATED
            ledger.parts.add(0, is_end=True)
            progress(ledger, is_end=True)
            for _ in publisher.finish():  # the signal of a stop ends the stage too
                progress(ledger)
            progress(ledger, is_end=True)
        store.write("upload", json.dumps(publisher.upload))
        store.write("problem", coordinator.problem)
        store.write("stable", json.dumps(growth.stable))
        store.write("workers", crew.summary(**ledger.facts))
    except Exception as error:
        traceback.print_exc()
        store.write("problem", f"the coordinator failed: {type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
