"""Workers over items: each loads its models once, more are added while that pays, and each item gets one outcome."""
