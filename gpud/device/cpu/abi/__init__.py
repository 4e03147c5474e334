"""Layouts and records in memory that Python, the native SM loop and generated code share."""
