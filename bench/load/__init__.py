"""Load generators: good, hostile and killed clients, an echo server, scheduler events."""
