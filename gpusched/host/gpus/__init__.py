"""The devices of the box: read by NVML or simulated, claimed, published."""
