"""A pool in this process: one item after the other, for few items, one GPU, and debuggers."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from contextlib import nullcontext

from gpusched.common.errors import EXIT_SOME_FAILED, GpuschedError
from gpusched.host.store.pool.items import ItemStore
from gpusched.operations.interactive.block import gpu
from gpusched.pool.coordinator.ledger import Ledger
from gpusched.pool.coordinator.parts import Parts
from gpusched.pool.coordinator.publisher import Publisher
from gpusched.pool.coordinator.verdicts import NextTry
from gpusched.pool.execution import ItemRunner, SpoiledError, error_text
from gpusched.pool.messages import CPU
from gpusched.pool.options import PoolOptions


def run_inline(options: PoolOptions, store: ItemStore, *, has_gpu: bool, settings: Mapping[str, object]) -> None:
    """Give every item that has no outcome one, on a GPU that this process claims meanwhile. `settings` choose it.

    Raises GpuschedError, from what the user's code raises, if the worker cannot be loaded.
    """
    with gpu(**settings) if has_gpu else nullcontext():  # type: ignore[arg-type]
        runner = ItemRunner(options, "cuda:0" if has_gpu else CPU)
        try:
            runner.load()
            runner.worker.thread_setup()
        except Exception as error:
            traceback.print_exc()
            problem = f"the worker cannot load: {error_text(error)}"
            raise GpuschedError(problem, where=options.worker, exit_code=EXIT_SOME_FAILED) from error
        ledger, splits, split_by, has_worked = Ledger(store, options), 0, "", False
        while not ledger.backlog.is_empty and not ledger.problem:
            place = next(filter(ledger.backlog.has, (NextTry.ANYWHERE, NextTry.ALONE, NextTry.OWN_GPU)))
            count = runner.batch_size if place is NextTry.ANYWHERE else 1
            items = [item for _ in range(count) if (item := ledger.backlog.take(place)) is not None]
            try:
                answers = runner.run([(item.id, item.value) for item in items])
            except SpoiledError as error:
                if not (options.command and has_worked):
                    where = options.worker or options.command
                    raise GpuschedError(str(error), where=where, exit_code=EXIT_SOME_FAILED) from error
                for item in items:
                    ledger.suspect(item, str(error), worker=0)
                ledger.commit()
                runner.worker.teardown()
                runner.load()  # the program anew
                continue
            has_worked = True
            for item, answer in zip(items, answers, strict=True):
                if answer.failure is None:
                    ledger.note_result(item.id, answer.result)
                else:
                    ledger.note_failure(item, answer.failure, worker=0, had_own_gpu=True)
            ledger.commit()
            splits, split_by, runner.split_by = splits + bool(runner.split_by), runner.split_by or split_by, ""
        store.write("workers", json.dumps({"splits": splits, "split_by": split_by}))
        store.write("problem", ledger.problem)
        runner.worker.teardown()


def publish_inline(options: PoolOptions, store: ItemStore) -> None:
    """Write the rest of the results in parts, and publish all parts, as a coordinator does it meanwhile."""
    Parts(store, options).add(0, is_end=True)
    with Publisher(options.publication) as publisher:
        for _ in publisher.finish():
            pass
    store.write("upload", json.dumps(publisher.upload))
