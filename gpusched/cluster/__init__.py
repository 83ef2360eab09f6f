"""One queue over several boxes. Nothing outside `gpusched.cluster.transport` imports Ray."""
