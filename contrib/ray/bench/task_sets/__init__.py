"""Policies for task sets in virtual time; `compare_sets.py` beside it prints them."""
