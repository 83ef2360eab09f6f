"""The database of a pool, which is none of a queue."""
