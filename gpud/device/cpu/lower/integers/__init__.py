"""Lowerings of integer instructions: arithmetic, logic, dot products, video."""
