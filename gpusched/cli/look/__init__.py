"""The verbs that show a queue and its jobs."""
