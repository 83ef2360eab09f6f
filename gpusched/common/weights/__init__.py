"""Headers of weight files, on the disk and on the hub: names, types and shapes of tensors, without their values."""
