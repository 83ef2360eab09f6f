"""Decide what becomes of a job: its states, its outcomes, what it waits for."""
