"""Memory: the driver's virtual memory, sessions' arenas, quiescing sessions, pools and staging."""
