"""The connection to the daemon: the protocol's state without I/O, and the blocking I/O."""
