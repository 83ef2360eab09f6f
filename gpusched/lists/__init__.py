"""Turn files of commands, YAML, tables and sweeps into job specs and findings."""
