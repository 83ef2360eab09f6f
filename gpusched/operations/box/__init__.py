"""This box: its GPUs as the verbs show them, and the service that starts a dispatcher with it."""
