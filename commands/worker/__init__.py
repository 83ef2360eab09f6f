"""One worker of a pool: a process that loads the user's models once and works on the items that it gets."""
