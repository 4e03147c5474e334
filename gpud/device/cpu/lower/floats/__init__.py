"""Lowerings of floating-point instructions, and the formats and roundings that they need."""
