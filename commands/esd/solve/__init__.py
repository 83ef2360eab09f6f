"""Compute the spectra of layers within a bound of memory, or take them from the cache of spectra."""
