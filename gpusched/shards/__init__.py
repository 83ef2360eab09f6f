"""One script run on many items in shards: the plan, the jobs, and the merge of their outputs."""
