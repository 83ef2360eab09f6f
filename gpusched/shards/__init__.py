"""One script run on many items in shards: the plan, the jobs, and a start after an earlier one."""
