"""Policies: which task of a set runs on which GPU, and when."""
