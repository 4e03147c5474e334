"""Interprocess communication: sockets, framed streams, child processes, descriptors, systemd."""
