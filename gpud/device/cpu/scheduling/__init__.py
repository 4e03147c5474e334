"""Runs sequences of launches: runs, their blocks, and the placement of blocks on SMs."""
