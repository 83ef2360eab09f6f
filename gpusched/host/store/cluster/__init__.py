"""The tables of a cluster: the leases of its head, and the jobs that a node has under a lease."""
