"""What gpusched shows: reads values, writes text."""
