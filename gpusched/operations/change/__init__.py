"""Changes of jobs, queues and their settings, with a report of what was done and what not."""
