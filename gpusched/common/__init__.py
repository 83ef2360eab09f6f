"""The leaf that the package and its stages share: text, sizes, processes, errors. Imports nothing else."""
