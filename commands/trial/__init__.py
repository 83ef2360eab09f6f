"""Trials of the settings of a pool: workers of one batch size on one GPU, measured in windows."""
