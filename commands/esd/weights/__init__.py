"""Decide what a weight is, from names, shapes, types and config: which tensors are layers, and what the others are."""
