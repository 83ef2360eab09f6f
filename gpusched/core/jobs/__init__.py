"""Decide the life of a job: its states, its outcomes, its dependencies."""
