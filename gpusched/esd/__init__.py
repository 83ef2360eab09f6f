"""Spectral analysis of many models: lists of models, a job for each of them, and a summary of their results."""
