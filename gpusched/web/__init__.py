"""The page about queues and GPUs in a browser on this host: `gpusched web`."""
