"""Spectral analysis of many models: lists of models, a job for each of them, and a summary of their results.

The names are loaded on first use, so that a stage can import `gpusched.esd.model_record` without the dispatcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusched.esd.backend import EsdBackend as EsdBackend
    from gpusched.esd.config import EsdConfig as EsdConfig
    from gpusched.esd.experiment import EsdExperiment as EsdExperiment
    from gpusched.esd.model_list import ModelRow as ModelRow
    from gpusched.esd.records import EsdSummary as EsdSummary
    from gpusched.esd.todo import EsdTodo as EsdTodo

_MODULES = {
    "EsdBackend": "backend",
    "EsdConfig": "config",
    "EsdExperiment": "experiment",
    "EsdSummary": "records",
    "EsdTodo": "todo",
    "ModelRow": "model_list",
}


def __getattr__(name: str) -> object:
    """Return a public name from the module that defines it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
