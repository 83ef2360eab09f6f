"""Spectral analysis of many models: model lists, their jobs, their records and the summary."""
