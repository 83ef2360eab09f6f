"""The GPU memory that each model of an experiment asks for, from the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpusched.common.hub_headers import Model
from gpusched.common.tensor_headers import Shapes
from gpusched.common.text import clean
from gpusched.core.model import MIB
from gpusched.core.plan.planner import round_budget
from gpusched.esd.config import EsdConfig
from gpusched.esd.gpu_memory import GpuNeed, gpu_need
from gpusched.esd.model_list import ModelRow

if TYPE_CHECKING:
    from gpusched.esd.backend import EsdBackend

SHOWN_ROWS = 5
_DEPTH = 4  # adapters of adapters of …


def find_budgets(rows: Sequence[ModelRow], config: EsdConfig, backend: EsdBackend) -> dict[ModelRow, int]:
    """Return the GPU memory in bytes of each model whose need is known and fits a GPU; report the other models."""
    capacities = backend.device_budgets() if rows else []
    if not capacities:
        return {}
    largest = max(capacities)
    needs, unknown = _find_needs(rows, config, backend)
    budgets: dict[ModelRow, int] = {}
    for row, (size, tensor) in needs.items():
        size = -(-size // MIB) * MIB
        if round_budget(size) <= largest:
            budgets[row] = size
            continue
        shape = "×".join(map(str, tensor.shape))
        backend.notify(
            f"{clean(row.name)}: its largest layer, {clean(tensor.name)} ({shape}), needs {size // MIB} MiB of GPU "
            f"memory, and the largest GPU here offers {largest // MIB} MiB; the model gets a GPU to itself, and layers "
            "that do not fit are computed on the CPU"
        )
    if unknown:
        reasons = "; ".join(f"{clean(row.name)}: {clean(reason)}" for row, reason in unknown[:SHOWN_ROWS])
        more = f"; and {len(unknown) - SHOWN_ROWS} more" if len(unknown) > SHOWN_ROWS else ""
        backend.notify(f"the GPU memory of these models is unknown, so each gets a GPU to itself ({reasons}{more})")
    return budgets


def _find_needs(
    rows: Sequence[ModelRow], config: EsdConfig, backend: EsdBackend
) -> tuple[dict[ModelRow, GpuNeed], list[tuple[ModelRow, str]]]:
    """Return the need of each row, and the rows without one with the reason. An adapter needs what its base needs."""
    models = {row: (row.base, "" if row.is_adapter and row.source else row.revision) for row in rows}
    shapes_of: dict[Model, Shapes] = {}
    for _ in range(_DEPTH):
        shapes_of.update(backend.read_shapes({model for model in models.values() if model not in shapes_of}))
        bases = {row: (base, "") for row, model in models.items() if (base := shapes_of[model].base)}
        models |= bases
        if all(model in shapes_of for model in models.values()):
            break
    needs: dict[ModelRow, GpuNeed] = {}
    unknown: list[tuple[ModelRow, str]] = []
    for row, model in models.items():
        shapes = shapes_of.get(model, Shapes(why_not="its base is not known"))
        need = gpu_need(shapes.tensors, solver=config.solver, parallel=config.parallel_gpu, layers=config.layers)
        if need is None:
            unknown.append((row, shapes.why_not or "it has no matrix"))
        else:
            needs[row] = need
    return needs, unknown
