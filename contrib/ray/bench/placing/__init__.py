"""Placements of items in virtual time; `placement.py` beside it prints them."""
