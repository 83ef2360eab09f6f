"""The resources of the machine, one in each file: GPUs, processes, queues, databases, work trees. No policy."""
