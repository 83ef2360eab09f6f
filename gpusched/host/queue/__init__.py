"""The files of a queue, beside its database."""
