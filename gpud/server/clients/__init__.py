"""Clients: their connections, sessions and quotas, and a handler for each request."""
