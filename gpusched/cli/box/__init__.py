"""The verbs about this machine: its GPUs and the settings."""
