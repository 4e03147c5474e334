"""The per-user runner: a process that queues and runs a user's tasks."""
