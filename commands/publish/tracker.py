"""The progress of a pool as a run of Weights & Biases."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

from gpusched.pool.publication import Publication


class Tracker:
    """A run there, or none. What fails there is said once and stops nothing."""

    def __init__(self, publication: Publication) -> None:
        self._run: Any = None
        if publication.project:
            try:
                import wandb

                self._run = wandb.init(
                    project=publication.project,
                    name=publication.name,
                    id=hashlib.sha256(publication.output.encode()).hexdigest()[:12],  # a resumed pool goes on in it
                    resume="allow",
                    dir=publication.output,
                )
            except Exception as error:
                self._give_up(error)

    def log(self, numbers: Mapping[str, Any]) -> None:
        if self._run is not None:
            try:
                self._run.log(dict(numbers))
            except Exception as error:
                self._give_up(error)

    def finish(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _give_up(self, error: Exception) -> None:
        print(f"gpusched: Weights & Biases gets no more numbers: {error}", file=sys.stderr, flush=True)
        self._run = None
