"""Queues and jobs as they are: states, reasons, logs, usage, and waiting for their end."""
