"""Attempts that run: launched or adopted, looked at, measured, stopped."""
