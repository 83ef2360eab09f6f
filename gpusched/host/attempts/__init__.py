"""The processes of a job: starting them, staying with them, reading their records."""
