"""Simulate a CUDA job on simulated GPUs: `python -m gpusched.commands.simjob --help`. Touches no real GPU."""
