"""What makes jobs: job files and sweeps. Results are summed up here too; nothing is run or read by itself."""
