"""Jobs as they come in while a queue is dispatched, and the head of those that wait."""
