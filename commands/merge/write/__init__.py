"""The output file, its metadata, and the files that it may replace."""
