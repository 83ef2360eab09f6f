"""One class for each format: it reads parts and writes the output. gpusched.shards.merge_options has their table."""
