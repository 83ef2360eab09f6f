"""The processes of a job: launched, stayed with, found again."""
