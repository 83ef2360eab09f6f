"""Find a model by its name or path: on this machine, in the cache of the hub, or on the hub."""
