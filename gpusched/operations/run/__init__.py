"""Jobs into their queues and dispatchers for them: lists, submissions, the background, and what is looked at before."""
