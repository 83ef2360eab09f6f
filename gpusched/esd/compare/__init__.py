"""The comparison of models with each other, for the report."""
