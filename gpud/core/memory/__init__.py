"""Memory accounting: who has which addresses, and which copy of an array is valid."""
