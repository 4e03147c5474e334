"""Chains of launches at run time: their gangs, the workers of these, and where they run."""
