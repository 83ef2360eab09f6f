"""Decisions of gpusched: values in, values out; no I/O, no clock, no randomness."""
