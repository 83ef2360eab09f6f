"""Compute the weights that packed tensors stand for, one format a file, when they are read."""

from __future__ import annotations

from . import awq, bnb, fp8, gptq, mlx, mxfp4, recombined

FINDERS = (bnb.find, gptq.find, awq.find, mlx.find, mxfp4.find, fp8.find, recombined.find)

# Values of quant_method in a config.json whose weights are dequantised here, if their tensors are as expected.
METHODS = frozenset(
    {"bitsandbytes", "gptq", "gptqmodel", "auto-round", "awq", "fp8", "fbgemm_fp8", "finegrained_fp8", "modelopt"}
    | {"mxfp4", "compressed-tensors", "mlx"}
)
