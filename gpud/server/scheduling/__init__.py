"""What the front keeps of jobs: their records, progress, fault sites, and the event log."""
