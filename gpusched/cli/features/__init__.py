"""The verbs of the features built on the queue."""
