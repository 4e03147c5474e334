"""The scheduler run: jobs, its events and commands, and what becomes of each job."""
