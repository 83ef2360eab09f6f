"""Batch size, workers and threads of a pool, found by trials."""
