"""Passes that bring a kernel into its form: persistent, exit-aware or sliced."""
