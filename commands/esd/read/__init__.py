"""Read the tensors of a model that lies on this machine, and decide which of them are layers."""
