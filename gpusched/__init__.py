"""gpusched: run commands on the GPUs of a shared box that are really free.

The library is `gpusched.api`; its names are here, too, and are imported when they are first used:

    import gpusched

    queue = gpusched.Queue("night")
    job = queue.submit("python train.py --seed 1", mem="18G", name="seed1")
    queue.run(max_gpus=2)
    print(job.state, job.log())
"""

from __future__ import annotations

__version__ = "0.2.0"

TYPE_CHECKING = False  # a shepherd imports this: no library is loaded here
if TYPE_CHECKING:
    from gpusched.api import Job as Job
    from gpusched.api import Queue as Queue
    from gpusched.api import dry_run as dry_run
    from gpusched.api import gpu as gpu
    from gpusched.api import run as run
    from gpusched.pool.pool import WorkerPool as WorkerPool
    from gpusched.pool.worker import Worker as Worker

_NAMES = ("Job", "Queue", "dry_run", "gpu", "run")
_POOL = {"Worker": "worker", "WorkerPool": "pool"}


def __getattr__(name: str) -> object:
    if name in _NAMES:
        import gpusched.api

        return getattr(gpusched.api, name)
    if name in _POOL:
        import importlib

        return getattr(importlib.import_module(f"gpusched.pool.{_POOL[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_NAMES, *_POOL]
