"""Adaptive workers over items, models loaded once."""
