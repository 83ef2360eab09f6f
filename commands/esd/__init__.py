"""Spectral (ESD) analysis of the weights of one model: a program, and `analyze` for those who import it.

    from gpusched.commands.esd import analyze
    table = analyze("path/to/model", fix_fingers="DKS")
    table.to_csv("table.csv"); table.as_columns()["alpha"]

Importing this package loads nothing; calling `analyze` loads PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .write.results import Table


def analyze(
    model: str | os.PathLike[str] | Mapping[str, Any] | torch.nn.Module,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Table:
    """The spectra and power laws of a model's layers.

    `model`: a directory or file of weights on this box, a state dict, or a torch module. `options`: the fields of
    options.Options, by name. Raises tensors.ModelError for a model that cannot be read, ValueError for an option that
    cannot be meant, analysis.NoDevice.
    """
    from pathlib import Path

    import torch

    from .analysis import analyse, choose_device
    from .options import Options
    from .read.sources import ModuleSource, StateSource, open_local
    from .read.tensors import TensorSource
    from .solve.cache import SpectraCache

    chosen = Options(**options)
    source: TensorSource
    if isinstance(model, torch.nn.Module):
        source = ModuleSource(model)
    elif isinstance(model, Mapping):
        source = StateSource(model)
    else:
        source = open_local(model)
    cache = None
    try:
        cache = SpectraCache(Path(cache_dir)) if cache_dir is not None else None
        return analyse(source, chosen, choose_device(chosen.device), cache=cache)
    finally:
        source.close()
        if cache is not None:
            cache.close()
