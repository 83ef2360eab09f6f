"""The verbs that change a queue."""
