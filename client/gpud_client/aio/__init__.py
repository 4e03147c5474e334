"""The client library for asyncio: its session, its jobs and its channel."""
