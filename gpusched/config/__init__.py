"""The settings: one table of them, and the layers of files, environment and flags that fill it."""
