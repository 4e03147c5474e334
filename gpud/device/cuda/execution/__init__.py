"""A run of a chain: the gang, what it launches, what is seen of it, and how it ends."""
