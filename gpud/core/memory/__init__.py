"""Memory accounting: the addresses of each session, and which copy of an array is valid."""
