"""Unpack small integers from words: b bits each, the first in the lowest bits, without gaps, across words too."""

from __future__ import annotations

import torch

CHUNK = 512  # rows or columns for which scales are spread out at a time


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the integers of the last dimension as uint8: w words of 32 bits hold 32 w / bits of them."""
    stored = words.contiguous().view(torch.uint8)  # safetensors and PyTorch store words with the low byte first
    mask = (1 << bits) - 1
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        return ((stored.unsqueeze(-1) >> shifts) & mask).flatten(-2)
    # Eight numbers lie in `bits` bytes; each of them in one byte or in two.
    groups = stored.unflatten(-1, (-1, bits)).to(torch.int16)
    starts = torch.arange(8) * bits
    low, high = groups[..., starts // 8], groups[..., (starts // 8 + 1).clamp(max=bits - 1)]
    values = (low | (high << 8)) >> (starts % 8).to(torch.int16)
    return (values & mask).to(torch.uint8).flatten(-2)
