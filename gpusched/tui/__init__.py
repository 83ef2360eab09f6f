"""The interactive view of queues and GPUs in a terminal: `gpusched top`."""
