"""Pages and lines of the features: shards, spectral analysis, clusters."""
