"""What gpusched does to the machine: one resource a file, no policy."""
