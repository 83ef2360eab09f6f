"""Spectral (ESD) analysis of the weights of one model: a program, and the function `analyze`.

    from gpusched.commands.esd import analyze
    table = analyze("path/to/model", fix_fingers="DKS")
    table.to_csv("table.csv"); table.as_columns()["alpha"]

Importing this package loads no library; calling `analyze` loads PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .write.results import Table


def analyze(model: str | os.PathLike[str] | Mapping[str, Any] | torch.nn.Module, **options: Any) -> Table:
    """Return the spectra and power laws of a model's layers.

    `model`: a directory or file of weights on this machine, a state dict, or a torch module. `options`: the fields of
    gpusched.esd.options.AnalysisOptions by name; without a `cache_dir` no spectrum is kept. Raises ModelError for a
    model that cannot be read, GpuschedError for an invalid option, NoDevice.
    """
    from contextlib import ExitStack, closing
    from pathlib import Path

    import torch

    from gpusched.esd.options import AnalysisOptions

    from .analysis import analyse, choose_device
    from .dequantise.plain_weights import plain_weights
    from .read.sources import ModuleSource, StateSource, open_local
    from .read.tensors import TensorSource
    from .solve.cache import SpectraCache

    chosen = AnalysisOptions(**options)
    chosen.check()
    source: TensorSource
    if isinstance(model, torch.nn.Module):
        source = ModuleSource(model)
    elif isinstance(model, Mapping):
        source = StateSource(model)
    else:
        source = open_local(model)
    source = plain_weights(source)
    with ExitStack() as stack:
        stack.enter_context(closing(source))
        cache = stack.enter_context(closing(SpectraCache(Path(chosen.cache_dir)))) if chosen.cache_dir else None
        return analyse(source, chosen, choose_device(chosen.device), cache=cache)
