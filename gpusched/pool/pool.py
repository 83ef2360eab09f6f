"""The Python face of a pool: `WorkerPool(Caption, items, output_dir="out").run()`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpusched.common.errors import EXIT_OK, EXIT_SOME_FAILED, GpuschedError
from gpusched.common.option_table import options_of
from gpusched.common.quantities import nearest
from gpusched.config.layers import load
from gpusched.config.settings import SETTINGS
from gpusched.host.store.pool.items import ItemStore
from gpusched.operations.run.run import QUIET_SESSION, RunSession
from gpusched.pool.execution import IMPORTS
from gpusched.pool.options import PoolOptions
from gpusched.pool.results import results
from gpusched.pool.start import PoolStart
from gpusched.pool.worker_name import find_worker, name_of


class WorkerPool:
    """Workers over items, which load their models once and resume where they stopped.

    `worker` is a class, a function, or the name of one as text; `options` are those of `gpusched pool`, and settings of
    `gpusched config` such as max_gpus=2.
    """

    def __init__(
        self,
        worker: type | Callable[[Any], Any] | str,
        items: Iterable[Any] | str,
        *,
        output_dir: str,
        settings: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """`items`: values as JSON has them, or the name of a file. `settings` are handed to the worker.

        Raises GpuschedError for what cannot be right.
        """
        if IMPORTS:
            problem, hint = "starts where a worker is imported from", 'put the call below: if __name__ == "__main__":'
            raise GpuschedError(f"a pool {problem}", where=IMPORTS[0], hint=hint)
        known = {each.name: each for each in options_of(PoolOptions)}
        own = {key: options.pop(key) for key in list(options) if key in known}
        own = {key: str(value) if isinstance(known[key].default, str) else value for key, value in own.items()}
        for key in options.keys() - SETTINGS.keys():
            close = nearest(key, [*known, *SETTINGS])
            hint = f"did you mean {close}?" if close else ""
            raise GpuschedError("is no option of a pool, and no setting", where=key, hint=hint)
        words = tuple(f"{name}={json.dumps(value)}" for name, value in (settings or {}).items())
        name = find_worker(worker) if isinstance(worker, str) else name_of(worker)
        file, values = (items, None) if isinstance(items, str) else ("", items)
        self.options = PoolOptions(worker=name.text, items=file, output_dir=output_dir, set=words, **own)
        self._start = PoolStart(self.options, load(options), worker=name, values=values)

    def run(self, session: RunSession = QUIET_SESSION) -> list[Any]:
        """Work until every item has an outcome, and return the results in the order of the items.

        Raises GpuschedError, with the exit code of `gpusched pool`, if an item has no result.
        """
        code = self._start.run(session)
        counts = self._start.counts
        if code == EXIT_SOME_FAILED and counts.results == counts.total:
            problem = f"{self._start.summary.parts_left} parts of the results are not uploaded"
            hint = f"the same call goes on; the last error: {self._start.summary.upload['error']}"
            raise GpuschedError(problem, where=self.options.output, hint=hint, exit_code=code)
        if code == EXIT_SOME_FAILED:
            summary = self._start.summary
            problem = f"{counts.total - counts.results} of {counts.total} items have no result"
            hint = f"{summary.frequency} of them, as errors.jsonl says: {summary.frequent_error}"
            raise GpuschedError(problem, where=self.options.output, hint=summary.problem or hint, exit_code=code)
        if code != EXIT_OK:
            hint = "the same call goes on"
            raise GpuschedError("the pool was ended", where=self.options.output, hint=hint, exit_code=code)
        with ItemStore(self._start.items_path) as store:
            return [result for _, result in results(store)]
