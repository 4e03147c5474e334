"""Runs chains of launches: gangs, their workers, and the placement of workers on SMs."""
