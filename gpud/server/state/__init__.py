"""The data that the parts of the server share: sessions, jobs, modules, quotas, arenas."""
