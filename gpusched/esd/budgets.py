"""The GPU memory that each model of an experiment asks for, from the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpusched.common.text import clean, first_few
from gpusched.core.jobs.job import round_budget
from gpusched.core.model import MIB
from gpusched.esd.config import EsdConfig
from gpusched.esd.gpu_memory import gpu_need, is_packed
from gpusched.esd.model_list import ModelRow

if TYPE_CHECKING:
    from gpusched.esd.backend import EsdBackend


def find_budgets(rows: Sequence[ModelRow], config: EsdConfig, backend: EsdBackend) -> dict[ModelRow, int]:
    """Return the GPU memory in bytes of each model whose need is known and fits a GPU; report the other models."""
    capacities = backend.device_budgets() if rows else []
    if not capacities:
        return {}
    largest = max(capacities)
    # An adapter needs what its base needs.
    models = {row: (row.base, "" if row.is_adapter and row.source else row.revision) for row in rows}
    shapes_of = backend.read_shapes(set(models.values()))
    budgets: dict[ModelRow, int] = {}
    unknown: list[str] = []
    for row, model in models.items():
        shapes = shapes_of[model]
        tensors = shapes.tensors
        if config.wants_change:  # differences are made in float64
            tensors = tuple(each._replace(dtype="F64") if "F" in each.dtype else each for each in tensors)
        need = gpu_need(tensors, solver=config.solver, parallel=config.parallel_gpu, layers=config.layers)
        if need is None:
            why = "its weights are packed" if any(map(is_packed, shapes.tensors)) else "it has no matrix"
            unknown.append(f"{clean(row.name)}: {clean(shapes.why_not or why)}")
            continue
        size = -(-need.bytes // MIB) * MIB
        if round_budget(size) <= largest:
            budgets[row] = size
            continue
        shape = "×".join(map(str, need.tensor.shape))
        backend.notify(
            f"{clean(row.name)}: its largest layer, {clean(need.tensor.name)} ({shape}), needs {size // MIB} MiB of "
            f"GPU memory, and the largest GPU here offers {largest // MIB} MiB; the model gets a GPU to itself, and "
            "layers that do not fit are computed on the CPU"
        )
    if unknown:
        reasons = "; ".join(first_few(unknown))
        backend.notify(f"the GPU memory of these models is unknown, so each gets a GPU to itself ({reasons})")
    return budgets
