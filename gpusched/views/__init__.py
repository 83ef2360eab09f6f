"""Text that gpusched shows, made of values; reads no store and no host."""
