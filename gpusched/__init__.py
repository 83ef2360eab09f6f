"""gpusched: run a file of commands on the GPUs of a shared box that are really free."""

__version__ = "0.1.0"
