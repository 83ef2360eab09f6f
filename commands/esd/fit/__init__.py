"""Fit a power law to a spectrum, and compute its other measures."""
