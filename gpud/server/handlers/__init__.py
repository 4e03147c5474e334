"""What the messages of clients do: connection, submission, queries, memory, programs, jobs."""
