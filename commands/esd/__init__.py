"""Spectral (ESD) analysis of the weights of one model: a program, and the function `analyze`.

    from gpusched.commands.esd import analyze
    table = analyze("path/to/model", fix_fingers="DKS")
    print(table); table.to_csv("table.csv"); table.to_pandas(); table.plot("alpha.png")

Importing this package loads no library; calling `analyze` loads PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

    from .write.results import Table


def analyze(
    model: str | os.PathLike[str] | Mapping[str, Any] | torch.nn.Module | torch.Tensor | np.ndarray[Any, Any],
    *,
    source_model: str = "",
    relation: str = "",
    revision: str = "",
    **options: Any,
) -> Table:
    """Return the spectra and power laws of a model's layers.

    `model`: a model on this machine or on the hub, an adapter too (with `source_model`, `relation` and `revision` as in
    a list); a torch module; tensors or arrays by name; a single matrix. `options`: the fields of
    gpusched.esd.options.AnalysisOptions by name; without a `cache_dir` no spectrum is kept. Raises ModelError for a
    model that cannot be read, GpuschedError for an invalid option, NoDevice.
    """
    from contextlib import ExitStack, closing
    from pathlib import Path

    import torch

    from gpusched.common.errors import GpuschedError
    from gpusched.esd.options import AnalysisOptions

    from .analysis import analyse, choose_device
    from .dequantise.plain_weights import plain_weights
    from .read.sources import ModuleSource, StateSource
    from .solve.cache import SpectraCache

    chosen = AnalysisOptions(**options)
    chosen.check()
    if chosen.wants_change and not isinstance(model, (str, os.PathLike)):
        raise GpuschedError("compares a model of a name or path with its base", where="--delta")
    with ExitStack() as stack:
        labels: dict[str, Any] = {"source_model": source_model}
        if isinstance(model, torch.nn.Module):
            source = plain_weights(ModuleSource(model))
        elif not isinstance(model, (str, os.PathLike)):
            source = plain_weights(StateSource(model if isinstance(model, Mapping) else {"weight": model}))
        else:
            from .find.hub import Hub
            from .find.open_model import open_model

            hub = stack.enter_context(closing(Hub()))
            row = {"source_model": source_model, "relation": relation, "revision": revision}
            opened = stack.enter_context(open_model(os.fspath(model), hub, **row, delta=chosen.wants_change))
            source = opened.source
            labels |= {"model_id": os.fspath(model), "is_adapter": len(opened.commits) > 1}
        cache = stack.enter_context(closing(SpectraCache(Path(chosen.cache_dir)))) if chosen.cache_dir else None
        return analyse(source, chosen, choose_device(chosen.device), cache=cache, labels=labels)
