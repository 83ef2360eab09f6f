"""Spectral (ESD) analysis of the weights of one model."""
