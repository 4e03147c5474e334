"""Load generators: good, hostile and killed clients, an echo server, events for the scheduler."""
