"""Make one file of many parts of the same kind."""
