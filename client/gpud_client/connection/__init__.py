"""The connection: the protocol's state without I/O, and what moves its bytes."""
