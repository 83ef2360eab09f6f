"""The coordinator of a pool: one process, a job of the pool's queue, which alone knows who has which item."""
