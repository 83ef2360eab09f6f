"""The verbs that run or check a list."""
