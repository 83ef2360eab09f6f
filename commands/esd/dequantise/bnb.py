"""bitsandbytes: four bits by a table (nf4, fp4; Dettmers et al. 2023), and int8 with a scale for each row.

Four bits (bitsandbytes/functional.py, `dequantize_4bit`): two numbers a byte, the first in its high half;
w = table[q] · absmax of its block, in the type that the state names. With nested states the absmax are themselves
quantised: table2[absmax] · absmax2 + offset. Eight bits (`int8_vectorwise_dequant`): w = q · SCB / 127 by row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from ..read.derived import Derived, StoredTensors
from ..read.tensors import TensorInfo

_STATE = ".quant_state.bitsandbytes__"
_SHARE = 1 / 127
_CHUNK = 1 << 14  # blocks whose scales are spread out at a time
_NESTED = 3  # tensors behind the table, the state itself the last


def find(stored: StoredTensors) -> Iterator[Derived]:
    """Yield the weights with a state of four bits, and the int8 weights with SCB."""
    for name, info in stored.infos.items():
        if info.dtype == "int8" and len(info.shape) == 2 and name.endswith(".weight"):
            scale = f"{name.removesuffix('weight')}SCB"
            layout = f"{name}_format"  # 0: by rows; older versions have others
            is_by_rows = layout not in stored.infos or not stored.read(layout).any()
            if stored.shape(scale) == info.shape[:1] and is_by_rows:
                logical = TensorInfo(name, info.shape, "float32", "bitsandbytes int8")
                yield Derived(logical, (name, scale), _by_rows)
        elif _STATE in name and (derived := _four_bits(stored, name)):
            yield derived


def _by_rows(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return weight.to(torch.float32) * scale.to(torch.float32).unsqueeze(1) * _SHARE


def _four_bits(stored: StoredTensors, state_name: str) -> Derived | None:
    name = state_name.partition(_STATE)[0]
    try:
        state = json.loads(stored.read(state_name).numpy().tobytes())
        shape, dtype, block = tuple(map(int, state["shape"])), str(state["dtype"]), int(state["blocksize"])
        is_sound = dtype in ("float32", "float16", "bfloat16") and block > 0 and stored.infos[name].dtype == "uint8"
    except (ValueError, KeyError, TypeError):
        return None
    ends = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
    parts = [f"{name}{end}" for end in ends if f"{name}{end}" in stored.infos]
    info = TensorInfo(name, shape, dtype, f"bitsandbytes {state.get('quant_type')}")
    if not is_sound or len(parts) not in (2, 4) or stored.infos[name].elements * 2 != info.elements + info.elements % 2:
        return None

    return Derived(info, (name, *parts, state_name), partial(_by_table, state=state))


def _by_table(
    packed: torch.Tensor, absmax: torch.Tensor, table: torch.Tensor, *nested: torch.Tensor, state: Mapping[str, Any]
) -> torch.Tensor:
    block, shape = int(state["blocksize"]), tuple(state["shape"])
    if len(nested) == _NESTED:
        outer = nested[0].repeat_interleave(int(state["nested_blocksize"]))[: len(absmax)]
        absmax = nested[1][absmax.long()] * outer + float(state["nested_offset"])
    values = torch.empty(math.prod(shape), dtype=getattr(torch, state["dtype"]))
    pairs, factors = packed.reshape(-1).split(_CHUNK * block // 2), absmax.to(torch.float32).split(_CHUNK)
    for run, pair, factor in zip(values.split(_CHUNK * block), pairs, factors, strict=True):
        codes = torch.stack((pair >> 4, pair & 15), dim=1).reshape(-1)[: len(run)].int()
        run.copy_(table.to(torch.float32)[codes] * factor.repeat_interleave(block)[: len(run)])
    return values.reshape(shape)
