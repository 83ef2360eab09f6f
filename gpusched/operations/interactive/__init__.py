"""GPUs for a person: a command in the foreground, a reservation, a block of Python."""
