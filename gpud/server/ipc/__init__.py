"""Between processes: sockets, framed streams, child processes, descriptors, systemd."""
