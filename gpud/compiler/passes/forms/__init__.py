"""Passes that bring a kernel into its form: persistent, exit-aware, sliced or whole."""
