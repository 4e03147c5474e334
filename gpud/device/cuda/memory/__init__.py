"""Memory: the driver's virtual memory, sessions' arenas, pools and staged copies."""
