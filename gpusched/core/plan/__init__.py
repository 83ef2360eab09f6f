"""Decide which job starts on which device, from a snapshot of the box."""
