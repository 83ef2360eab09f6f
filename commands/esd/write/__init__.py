"""Write what an analysis leaves of a model: table, spectra, record and plots."""
