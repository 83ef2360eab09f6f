"""Spectral analysis of many models: lists of models, a job for each of them, and a summary of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusched.esd.seed_names import ESDExperiment, ExperimentConfig

__all__ = ["ESDExperiment", "ExperimentConfig"]


def __getattr__(name: str) -> Any:
    """Load the names of an earlier program when they are asked for; the stage imports this package for its options."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gpusched.esd import seed_names

    return getattr(seed_names, name)
