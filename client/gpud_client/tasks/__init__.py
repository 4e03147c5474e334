"""Tasks: whole programs in queues, run by the user's runner."""
