"""Programs that take turns with the devices' memory: what the daemon knows of them and does."""
