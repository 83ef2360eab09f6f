"""The work tree that jobs run in, and copies of it."""
