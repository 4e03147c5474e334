"""The asyncio client: session, jobs and channel."""
