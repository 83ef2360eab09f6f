"""Queues that stay: jobs submitted by themselves, their dispatcher in the background, and what people do with both."""
