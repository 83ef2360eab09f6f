"""Take the parts of a pool further: into another format, to another place, and its numbers to Weights & Biases."""
